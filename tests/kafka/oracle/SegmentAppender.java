import com.fasterxml.jackson.databind.JsonNode;

import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.UnifiedLog;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;

/** Lets a log grow as its source did, as a follower that takes over offsets, epochs and rolls. */
final class SegmentAppender {
    private static final LogConfig NEVER_ROLLS = neverRolls();

    private SegmentAppender() {
    }

    /** Appends what is new of each source segment; one that begins where the log ends is begun here too. */
    static void append(UnifiedLog log, JsonNode grown) throws IOException {
        long active = log.activeSegment().baseOffset();
        long first = log.logEndOffset();
        boolean hasBatches = false;
        for (JsonNode segment : grown)
            hasBatches |= segment.get("bytes").binaryValue().length > 0;
        Map<Long, Long> modifiedMs = new HashMap<>(Map.of(active, log.activeSegment().lastModified()));
        log.updateConfig(NEVER_ROLLS);
        for (JsonNode segment : grown) {
            long base = segment.get("base_offset").asLong();
            long lastModifiedMs = segment.get("modified_ms").asLong();
            if (base == active || base < active && hasBatches)
                modifiedMs.put(active, lastModifiedMs);
            if (base > active && base >= first) {
                log.roll(Optional.of(base));
                modifiedMs.put(base, lastModifiedMs);
            }
            for (MutableRecordBatch batch : batches(segment))
                log.appendAsFollower(bytes(batch), Math.max(batch.partitionLeaderEpoch(), 0));
        }
        log.updateHighWatermark(log.logEndOffset());
        for (LogSegment segment : log.logSegments())
            if (modifiedMs.containsKey(segment.baseOffset()))
                touch(segment, modifiedMs.get(segment.baseOffset()));
    }

    /** Sets the time of the file alone: the indexes of a segment just begun are not written yet. */
    static void touch(LogSegment segment, long lastModifiedMs) {
        if (!segment.log().file().setLastModified(lastModifiedMs))
            throw new IllegalStateException("cannot set the time of " + segment.log().file());
    }

    private static Iterable<MutableRecordBatch> batches(JsonNode segment) throws IOException {
        return MemoryRecords.readableRecords(ByteBuffer.wrap(segment.get("bytes").binaryValue())).batches();
    }

    private static MemoryRecords bytes(MutableRecordBatch batch) {
        ByteBuffer buffer = ByteBuffer.allocate(batch.sizeInBytes());
        batch.writeTo(buffer);
        buffer.flip();
        return MemoryRecords.readableRecords(buffer);
    }

    private static LogConfig neverRolls() {
        var properties = new Properties();
        properties.setProperty("segment.bytes", Integer.toString(Integer.MAX_VALUE));
        properties.setProperty("segment.ms", Long.toString(Long.MAX_VALUE));
        properties.setProperty("cleanup.policy", "delete");
        return new LogConfig(properties);
    }
}
