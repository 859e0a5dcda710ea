import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.CleanerStats;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

import java.io.File;
import java.io.IOException;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.ScheduledFuture;

/**
 * One round of Kafka's Cleaner on one partition's directory, with a broker's default buffers.
 *
 * Arguments: directory, first dirty offset, now in ms, segment.bytes. The log is loaded, "ready" is
 * printed, a line is awaited, the log is cleaned, and what it took is printed; after another line, what is left.
 */
public final class CleanerBench {
    private static final int DEDUPE_BUFFER_BYTES = 128 * 1024 * 1024;
    private static final int IO_BUFFER_BYTES = 512 * 1024 / 2;
    private static final int MAX_MESSAGE_BYTES = 1024 * 1024 + 12;
    private static final double LOAD_FACTOR = 0.9;

    public static void main(String[] arguments) throws Exception {
        var log = load(new File(arguments[0]), arguments[3]);
        long firstDirtyOffset = Long.parseLong(arguments[1]);
        long nowMs = Long.parseLong(arguments[2]);
        var cleaner = new Cleaner(
            0, new SkimpyOffsetMap(DEDUPE_BUFFER_BYTES), IO_BUFFER_BYTES, MAX_MESSAGE_BYTES, LOAD_FACTOR,
            new Throttler(Double.MAX_VALUE, 300, "cleaner-io", "bytes", Time.SYSTEM), Time.SYSTEM, partition -> { });
        var round = new LogToClean(log, firstDirtyOffset, log.activeSegment().baseOffset(), false);

        System.out.println("ready");
        System.in.read();
        long startedNs = System.nanoTime();
        var result = cleaner.doClean(round, nowMs);
        double seconds = (System.nanoTime() - startedNs) / 1e9;
        CleanerStats stats = result.getValue();
        System.out.printf(
            "{\"seconds\": %f, \"cleaned_to\": %d, \"index_seconds\": %f, \"bytes_read\": %d, \"bytes_written\": %d}%n",
            seconds, result.getKey(), stats.elapsedIndexSecs(), stats.bytesRead(), stats.bytesWritten());
        System.in.read();
        printSurvivors(log);
        Runtime.getRuntime().halt(0);
    }

    private static UnifiedLog load(File directory, String segmentBytes) throws IOException {
        var config = new Properties();
        config.setProperty("cleanup.policy", "compact");
        config.setProperty("segment.bytes", segmentBytes);
        var log = UnifiedLog.create(
            directory, new LogConfig(config), 0L, 0L, new Later(), new BrokerTopicStats(), Time.SYSTEM,
            Integer.MAX_VALUE, new ProducerStateManagerConfig(86_400_000, false), Integer.MAX_VALUE,
            new LogDirFailureChannel(1), false, Optional.empty());
        log.updateHighWatermark(log.logEndOffset());
        return log;
    }

    private static void printSurvivors(UnifiedLog log) {
        long records = 0;
        long offsetSum = 0;
        for (LogSegment segment : log.logSegments()) {
            for (RecordBatch batch : segment.log().batches()) {
                for (Record record : batch) {
                    records++;
                    offsetSum += record.offset();
                }
            }
        }
        System.out.printf("{\"records\": %d, \"offset_sum\": %d}%n", records, offsetSum);
    }

    /** A broker deletes the old segments a minute later, so not within the round. */
    private static final class Later implements Scheduler {
        @Override
        public void startup() {
        }

        @Override
        public void shutdown() {
        }

        @Override
        public ScheduledFuture<?> schedule(String name, Runnable task, long delayMs, long periodMs) {
            return null;
        }

        @Override
        public void resizeThreadPool(int newSize) {
        }
    }
}
