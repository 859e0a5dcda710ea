import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.BufferSupplier;

import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * Kafka's own classes over segment files: each batch is checked, each record decoded, as a consumer does.
 *
 * Arguments: a small log directory, which warms up, and the measured one. "ready" is printed, a line is awaited, the
 * files are read, and what it took is printed.
 */
public final class SegmentReader {
    private static long records;
    private static long bytes;

    public static void main(String[] arguments) throws Exception {
        read(Path.of(arguments[0]));
        records = 0;
        System.out.println("ready");
        System.in.read();
        long startedNs = System.nanoTime();
        read(Path.of(arguments[1]));
        double seconds = (System.nanoTime() - startedNs) / 1e9;
        System.out.printf("{\"seconds\": %f, \"records\": %d, \"bytes\": %d}%n", seconds, records, bytes);
    }

    private static void read(Path directory) throws Exception {
        try (var files = Files.walk(directory)) {
            for (Path path : files.filter(p -> p.toString().endsWith(".log")).sorted().toList()) {
                read(path.toFile());
            }
        }
    }

    private static void read(File file) throws Exception {
        try (var log = FileRecords.open(file, false); var buffers = BufferSupplier.create()) {
            for (RecordBatch batch : log.batches()) {
                batch.ensureValid();
                try (var decoded = batch.streamingIterator(buffers)) {
                    while (decoded.hasNext()) {
                        Record record = decoded.next();
                        records++;
                        bytes += record.keySize() + record.valueSize();
                    }
                }
            }
        }
    }
}
