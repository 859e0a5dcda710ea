import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.CleanedTransactionMetadata;
import org.apache.kafka.storage.internals.log.CleanerStats;
import org.apache.kafka.storage.internals.log.LogCleanerManager;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.LogStartOffsetIncrementReason;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.PreCleanStats;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;

/**
 * Runs Kafka's own log cleaner, retention and DeleteRecords over copies of logs, at times that the
 * input names. One JSON line in is one log; out come a line
 * for its state before any round, one after each, and one when its files are closed, or an error.
 */
public final class CleanerOracle {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final String PRODUCER_EXPIRATION = "producer.id.expiration.ms";
    private static final int BUFFER_BYTES = 1 << 20;

    private final OracleClock clock = new OracleClock();
    private final Cleaner cleaner = new Cleaner(
        0, new KeyOffsets(), BUFFER_BYTES, BUFFER_BYTES, 0.9,
        new Throttler(Double.MAX_VALUE, Long.MAX_VALUE, "oracle", "bytes", clock), clock, partition -> { });

    public static void main(String[] arguments) throws IOException {
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream results = System.out;
        // Nothing but results may reach stdout.
        System.setOut(System.err);
        var oracle = new CleanerOracle();
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JsonNode request = JSON.readTree(line);
            var last = JSON.createObjectNode().put("id", request.get("id").asText());
            try {
                oracle.runRounds(request, results);
                last.put("closed", true);
            } catch (Exception | AssertionError error) {
                last.put("error", describe(error));
            }
            results.println(last);
            results.flush();
        }
    }

    /** The chain of causes, and where it began: Kafka's API exceptions carry no stack trace. */
    private static String describe(Throwable error) {
        var text = new StringBuilder(error.toString());
        for (Throwable cause = error.getCause(); cause != null; cause = cause.getCause())
            text.append("; caused by ").append(cause);
        if (error.getStackTrace().length > 0)
            text.append("; at ").append(error.getStackTrace()[0]);
        return text.toString();
    }

    private void runRounds(JsonNode request, PrintStream results) throws Exception {
        String id = request.get("id").asText();
        boolean withRecords = request.path("with_records").asBoolean(true);
        Properties config = properties(request.get("config"));
        UnifiedLog log = load(request, config);
        ConcurrentMap<TopicPartition, UnifiedLog> logs = new ConcurrentHashMap<>(Map.of(log.topicPartition(), log));
        var manager = new LogCleanerManager(List.of(log.parentDirFile()), logs, log.logDirFailureChannel());
        try {
            if (request.hasNonNull("first_dirty_offset"))
                checkpoint(manager, log, request.get("first_dirty_offset").asLong());
            new LogDump(log, results).write(id, -1, "none", firstDirtyOffset(manager, log), -1, withRecords);
            int number = 0;
            for (JsonNode round : request.get("rounds"))
                runRound(new LogDump(log, results), manager, log, config, round, id, number++, withRecords);
        } finally {
            manager.removeMetrics();
            log.removeLogMetrics();
            log.close();
        }
    }

    private void runRound(LogDump dump, LogCleanerManager manager, UnifiedLog log, Properties config, JsonNode round,
                          String id, int number, boolean withRecords) throws Exception {
        if (round.hasNonNull("grown"))
            SegmentAppender.append(log, round.get("grown"));
        if (round.hasNonNull("config"))
            config.putAll(properties(round.get("config")));
        log.updateConfig(new LogConfig(config));
        log.producerStateManager().producerStateManagerConfig().setProducerIdExpirationMs(producerExpirationMs(config));
        clock.set(round.get("now_ms").asLong());
        log.removeExpiredProducers(clock.milliseconds());
        if (round.hasNonNull("delete_records"))
            deleteRecords(log, round.get("delete_records").asLong());
        long bound = firstUncleanableOffset(manager, log);
        String picked = clean(manager, log, round, bound);
        if (round.path("retention").asBoolean()) {
            dump.keepBatches();
            deleteOldSegments(log);
        }
        dump.write(id, number, picked, firstDirtyOffset(manager, log), bound, withRecords);
    }

    /** Where all of them go, the empty one that takes their place is as old as the round. */
    private void deleteOldSegments(UnifiedLog log) throws IOException {
        long active = log.activeSegment().baseOffset();
        log.deleteOldSegments();
        if (log.activeSegment().baseOffset() != active)
            SegmentAppender.touch(log.activeSegment(), clock.milliseconds());
    }

    /** The log as a broker recovers it from nothing but its segment files. */
    private UnifiedLog load(JsonNode request, Properties config) throws IOException {
        // Nothing expires while loading; each round expires producers by its own time.
        clock.set(0);
        var log = UnifiedLog.create(
            new File(request.get("directory").asText()), new LogConfig(config),
            request.path("log_start_offset").asLong(0), 0L, new OracleScheduler(), new BrokerTopicStats(), clock,
            Integer.MAX_VALUE, new ProducerStateManagerConfig(producerExpirationMs(config), false), Integer.MAX_VALUE,
            new LogDirFailureChannel(1), false, Optional.empty());
        JsonNode modified = request.path("modified_ms");
        for (LogSegment segment : log.logSegments()) {
            JsonNode modifiedMs = modified.path(Long.toString(segment.baseOffset()));
            if (!modifiedMs.isMissingNode())
                segment.setLastModified(modifiedMs.asLong());
        }
        log.updateHighWatermark(
            request.hasNonNull("high_watermark") ? request.get("high_watermark").asLong() : log.logEndOffset());
        return log;
    }

    private static int producerExpirationMs(Properties config) {
        return Integer.parseInt(config.getProperty(PRODUCER_EXPIRATION, "86400000"));
    }

    /** Without the broker's look at cleanup.policy; -1 is the high watermark. */
    private static void deleteRecords(UnifiedLog log, long offset) {
        log.maybeIncrementLogStartOffset(
            offset == -1 ? log.highWatermark() : offset, LogStartOffsetIncrementReason.ClientRecordDeletion);
    }

    /** One round if Kafka picks the log, else an idle one if that is allowed and due. */
    private String clean(LogCleanerManager manager, UnifiedLog log, JsonNode round, long bound) throws Exception {
        Optional<LogToClean> picked = manager.grabFilthiestCompactedLog(clock, new PreCleanStats());
        if (picked.isPresent()) {
            long endOffset = cleaner.doClean(picked.get(), clock.milliseconds()).getKey();
            manager.doneCleaning(log.topicPartition(), log.parentDirFile(), endOffset);
            return "dirty";
        }
        if (!log.config().compact || !round.path("idle").asBoolean())
            return "none";
        long firstDirtyOffset = firstDirtyOffset(manager, log);
        long end = Math.min(bound, segmentOf(log, firstDirtyOffset));
        if (end <= 0 || !(round.path("force_idle").asBoolean() || isIdleRoundDue(log, end)))
            return "none";
        cleanIdle(log, firstDirtyOffset, end);
        return "idle";
    }

    /** Where the segment begins that has the offset: those before it are clean as a whole. */
    private static long segmentOf(UnifiedLog log, long offset) {
        long base = 0;
        for (LogSegment segment : log.logSegments())
            if (segment.baseOffset() <= offset)
                base = segment.baseOffset();
        return base;
    }

    /** Kafka's way through the segments with a map that supersedes nothing: only time has passed. */
    private void cleanIdle(UnifiedLog log, long firstDirtyOffset, long bound) throws IOException {
        var offsets = new KeyOffsets();
        offsets.updateLatestOffset(bound - 1);
        var transactions = new CleanedTransactionMetadata();
        var stats = new CleanerStats(Time.SYSTEM);
        List<LogSegment> clean = log.logSegments(0, firstDirtyOffset);
        long legacyHorizonMs = clean.isEmpty()
            ? 0 : clean.get(clean.size() - 1).lastModified() - log.config().deleteRetentionMs;
        LogConfig config = log.config();
        List<List<LogSegment>> groups = cleaner.groupSegmentsBySize(
            log.logSegments(0, bound), config.segmentSize(), config.maxIndexSize, bound);
        for (List<LogSegment> group : groups)
            cleaner.cleanSegments(log, group, offsets, clock.milliseconds(), stats, transactions, legacyHorizonMs, bound);
    }

    /**
     * Whether, from the log start offset on, a horizon is reached that a tombstone or a marker waits for, or a
     * marker waits for one since its transaction has no batch left.
     */
    private boolean isIdleRoundDue(UnifiedLog log, long bound) throws IOException {
        var transactions = new CleanedTransactionMetadata();
        for (LogSegment segment : log.logSegments(0, bound)) {
            transactions.addAbortedTransactions(
                log.collectAbortedTransactions(segment.baseOffset(), segment.readNextOffset()));
            for (RecordBatch batch : LogDump.batches(segment)) {
                boolean hasLostItsData = batch.isControlBatch()
                    ? transactions.onControlBatchRead(batch) : transactions.onBatchRead(batch);
                if (batch.lastOffset() < log.logStartOffset())
                    continue;
                boolean isMarker = batch.isControlBatch() && batch.iterator().hasNext();
                if (isPastHorizon(batch) && (isMarker || hasTombstone(batch, log.logStartOffset())))
                    return true;
                if (isMarker && hasLostItsData && batch.deleteHorizonMs().isEmpty())
                    return true;
            }
        }
        return false;
    }

    private boolean isPastHorizon(RecordBatch batch) {
        OptionalLong horizonMs = batch.deleteHorizonMs();
        return horizonMs.isPresent() && horizonMs.getAsLong() <= clock.milliseconds();
    }

    private static boolean hasTombstone(RecordBatch batch, long logStartOffset) {
        if (batch.isControlBatch())
            return false;
        for (Record record : batch)
            if (record.offset() >= logStartOffset && !record.hasValue())
                return true;
        return false;
    }

    private static void checkpoint(LogCleanerManager manager, UnifiedLog log, long offset) {
        manager.updateCheckpoints(
            log.parentDirFile(), Optional.of(Map.entry(log.topicPartition(), offset)), Optional.empty());
    }

    private static long firstDirtyOffset(LogCleanerManager manager, UnifiedLog log) {
        return manager.allCleanerCheckpoints().getOrDefault(log.topicPartition(), log.logStartOffset());
    }

    /** What LogCleanerManager finds, rounded down to a segment as it does before it counts bytes. */
    private long firstUncleanableOffset(LogCleanerManager manager, UnifiedLog log) throws Exception {
        Method cleanableOffsets = LogCleanerManager.class.getDeclaredMethod(
            "cleanableOffsets", UnifiedLog.class, Optional.class, long.class);
        cleanableOffsets.setAccessible(true);
        Optional<Long> checkpoint = Optional.ofNullable(manager.allCleanerCheckpoints().get(log.topicPartition()));
        Object offsets = cleanableOffsets.invoke(null, log, checkpoint, clock.milliseconds());
        long firstDirty = read(offsets, "firstDirtyOffset");
        long firstUncleanable = read(offsets, "firstUncleanableDirtyOffset");
        return LogCleanerManager.calculateCleanableBytes(log, firstDirty, firstUncleanable).getKey();
    }

    private static long read(Object offsets, String component) throws Exception {
        Method accessor = offsets.getClass().getDeclaredMethod(component);
        accessor.setAccessible(true);
        return (long) accessor.invoke(offsets);
    }

    private static Properties properties(JsonNode object) {
        var properties = new Properties();
        object.properties().forEach(entry -> properties.setProperty(entry.getKey(), entry.getValue().asText()));
        return properties;
    }
}
