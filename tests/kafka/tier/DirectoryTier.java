import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;

/** A broker's remote tier in a directory: a folder for each segment, a file for each index. */
public final class DirectoryTier implements RemoteStorageManager {
    private Path directory;

    @Override
    public void configure(Map<String, ?> settings) {
        directory = Path.of((String) settings.get("directory"));
    }

    @Override
    public Optional<CustomMetadata> copyLogSegmentData(
            RemoteLogSegmentMetadata segment, LogSegmentData data) throws RemoteStorageException {
        byte[] epochs = new byte[data.leaderEpochIndex().remaining()];
        data.leaderEpochIndex().get(epochs);
        try {
            Path folder = Files.createDirectories(folderOf(segment));
            Files.copy(data.logSegment(), folder.resolve("log"));
            Files.copy(data.offsetIndex(), folder.resolve(IndexType.OFFSET.name()));
            Files.copy(data.timeIndex(), folder.resolve(IndexType.TIMESTAMP.name()));
            Files.copy(
                    data.producerSnapshotIndex(),
                    folder.resolve(IndexType.PRODUCER_SNAPSHOT.name()));
            Files.write(folder.resolve(IndexType.LEADER_EPOCH.name()), epochs);
            if (data.transactionIndex().isPresent()) {
                Files.copy(
                        data.transactionIndex().get(),
                        folder.resolve(IndexType.TRANSACTION.name()));
            }
        } catch (IOException error) {
            throw new RemoteStorageException(error);
        }
        return Optional.empty();
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int first)
            throws RemoteStorageException {
        return opened(segment, "log", first);
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int first, int last)
            throws RemoteStorageException {
        return opened(segment, "log", first);
    }

    @Override
    public InputStream fetchIndex(RemoteLogSegmentMetadata segment, IndexType kind)
            throws RemoteStorageException {
        return opened(segment, kind.name(), 0);
    }

    @Override
    public void deleteLogSegmentData(RemoteLogSegmentMetadata segment)
            throws RemoteStorageException {
        throw new RemoteStorageException("no test removes from the tier");
    }

    @Override
    public void close() {}

    private InputStream opened(RemoteLogSegmentMetadata segment, String name, int first)
            throws RemoteStorageException {
        try {
            InputStream stream = Files.newInputStream(folderOf(segment).resolve(name));
            stream.skipNBytes(first);
            return stream;
        } catch (NoSuchFileException error) {
            throw new RemoteResourceNotFoundException(error);
        } catch (IOException error) {
            throw new RemoteStorageException(error);
        }
    }

    private Path folderOf(RemoteLogSegmentMetadata segment) {
        return directory.resolve(segment.remoteLogSegmentId().id().toString());
    }
}
