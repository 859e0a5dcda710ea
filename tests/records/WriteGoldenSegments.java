import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.StringJoiner;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.message.LeaderChangeMessage;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.DefaultRecordBatch;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecords.RecordFilter;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.record.internal.SimpleRecord;
import org.apache.kafka.common.utils.BufferSupplier;

/** Writes small segment files with Kafka's own classes, and beside each what Kafka reads in it. */
public class WriteGoldenSegments {
    static final long T0 = 1_700_000_000_000L;
    static final String SEGMENT = "00000000000000000000.log";

    public static void main(String[] args) throws IOException {
        Path root = Path.of(args[0]);
        write(root.resolve("magic-0"), legacy((byte) 0));
        write(root.resolve("magic-1"), legacy((byte) 1));
        write(root.resolve("magic-2"), magic2());
        write(root.resolve("cleaned"), clean(magic2()));
        write(root.resolve("cleaned-magic-1"), clean(legacy((byte) 1)));
    }

    static ByteBuffer legacy(byte magic) {
        ByteBuffer log = ByteBuffer.allocate(1 << 20);
        long offset = 5;
        for (CompressionType codec : List.of(CompressionType.NONE, CompressionType.GZIP,
                CompressionType.SNAPPY, CompressionType.LZ4)) {
            for (TimestampType type : TimestampType.values()) {
                boolean isOfMagic = (type == TimestampType.NO_TIMESTAMP_TYPE) == (magic == 0);
                if (!isOfMagic) continue;
                MemoryRecordsBuilder batch = MemoryRecords.builder(
                    log.slice(), magic, Compression.of(codec).build(), type, offset, T0 + 99);
                for (SimpleRecord record : records(false)) {
                    batch.appendWithOffset(offset, magic == 0 ? bare(record) : record);
                    offset += 1 + offset % 3;
                }
                advance(log, batch.build());
            }
        }
        log.flip();
        return log;
    }

    static SimpleRecord bare(SimpleRecord record) {
        return new SimpleRecord(RecordBatch.NO_TIMESTAMP, record.key(), record.value());
    }

    static ByteBuffer magic2() {
        ByteBuffer log = ByteBuffer.allocate(1 << 20);
        long offset = 7;
        for (CompressionType codec : CompressionType.values()) {
            for (TimestampType type : List.of(TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME)) {
                boolean isTransactional = type == TimestampType.CREATE_TIME;
                MemoryRecordsBuilder batch = MemoryRecords.builder(
                    log.slice(), (byte) 2, Compression.of(codec).build(), type, offset, T0 + 99,
                    isTransactional ? 4001 : -1, (short) (isTransactional ? 3 : -1),
                    isTransactional ? 17 : -1, isTransactional, 6);
                for (SimpleRecord record : records(true)) batch.appendWithOffset(offset++, record);
                advance(log, batch.build());
            }
        }
        advance(log, marker(offset++, ControlRecordType.COMMIT));
        advance(log, marker(offset++, ControlRecordType.ABORT));
        advance(log, MemoryRecords.withLeaderChangeMessage(
            offset++, T0 + 1000, 6, ByteBuffer.allocate(256), new LeaderChangeMessage().setLeaderId(1)));
        DefaultRecordBatch.writeEmptyHeader(log, (byte) 2, 4001, (short) 4, -1, offset, offset, 6,
            TimestampType.CREATE_TIME, T0 + 1001, true, true);
        offset++;
        DefaultRecordBatch.writeEmptyHeader(log, (byte) 2, 4001, (short) 4, 21, offset, offset + 9, 6,
            TimestampType.CREATE_TIME, T0 + 1002, true, false);
        offset += 10;
        MemoryRecordsBuilder untimed = MemoryRecords.builder(log.slice(), (byte) 2,
            Compression.NONE, TimestampType.CREATE_TIME, offset, RecordBatch.NO_TIMESTAMP);
        untimed.append(new SimpleRecord(RecordBatch.NO_TIMESTAMP, "k".getBytes(), "v".getBytes()));
        untimed.append(new SimpleRecord(5, "k".getBytes(), "w".getBytes()));
        advance(log, untimed.build());
        log.flip();
        return log;
    }

    static MemoryRecords marker(long offset, ControlRecordType type) {
        return MemoryRecords.withEndTransactionMarker(
            offset, T0 + 500 + offset, 6, 4001, (short) 3, new EndTransactionMarker(type, 9));
    }

    static List<SimpleRecord> records(boolean hasHeaders) {
        Header[] none = {};
        Header[] some = {
            new RecordHeader("a", "1".getBytes()),
            new RecordHeader("a", (byte[]) null),
            new RecordHeader("", new byte[0]),
            new RecordHeader("gr\u00f6\u00dfe", new byte[70]),
        };
        List<SimpleRecord> records = new ArrayList<>();
        records.add(record(0, "first", "one", none));
        records.add(record(70, "key", "x".repeat(200), hasHeaders ? some : none));
        records.add(record(-40, null, "no key", none));
        records.add(record(3, "", "", none));
        records.add(record(86_400_000, "tombstone", null, hasHeaders ? some : none));
        records.add(record(-86_400_000, null, null, none));
        return records;
    }

    static SimpleRecord record(long delay, String key, String value, Header[] headers) {
        return new SimpleRecord(T0 + delay, bytes(key), bytes(value), headers);
    }

    static byte[] bytes(String text) {
        return text == null ? null : text.getBytes(StandardCharsets.UTF_8);
    }

    /** Keeps keyed records only, empties every third batch, sets horizons: as a cleaner round does. */
    static ByteBuffer clean(ByteBuffer log) {
        ByteBuffer cleaned = ByteBuffer.allocate(1 << 20);
        RecordFilter filter = new RecordFilter(T0 + 2_000_000, 86_400_000) {
            private int seen = 0;
            private boolean isEmptied;

            @Override
            protected BatchRetentionResult checkBatchRetention(RecordBatch batch) {
                isEmptied = ++seen % 3 == 0;
                boolean isOld = batch.magic() < 2;
                return new BatchRetentionResult(
                    isOld ? BatchRetention.DELETE_EMPTY : BatchRetention.RETAIN_EMPTY,
                    batch.isControlBatch());
            }

            @Override
            protected boolean shouldRetainRecord(RecordBatch batch, Record record) {
                return !isEmptied && record.hasKey();
            }
        };
        MemoryRecords.readableRecords(log).filterTo(filter, cleaned, BufferSupplier.NO_CACHING);
        cleaned.flip();
        return cleaned;
    }

    static void advance(ByteBuffer log, MemoryRecords written) {
        log.put(written.buffer().duplicate());
    }

    static void write(Path directory, ByteBuffer log) throws IOException {
        Files.createDirectories(directory);
        byte[] bytes = new byte[log.remaining()];
        log.get(bytes);
        Files.write(directory.resolve(SEGMENT), bytes);
        StringJoiner batches = new StringJoiner(",\n", "[\n", "\n]\n");
        try (FileRecords file = FileRecords.open(directory.resolve(SEGMENT).toFile(), false)) {
            int position = 0;
            for (RecordBatch batch : file.batches()) {
                batches.add(describe(batch, position));
                position += batch.sizeInBytes();
            }
        }
        Files.writeString(directory.resolve("kafka.json"), batches.toString());
    }

    static String describe(RecordBatch batch, int position) {
        StringJoiner records = new StringJoiner(",\n    ", "[", "]");
        for (Record record : batch) records.add(describe(record));
        return "  {\"position\": " + position
            + ", \"base_offset\": " + batch.baseOffset()
            + ", \"last_offset\": " + batch.lastOffset()
            + ", \"leader_epoch\": " + batch.partitionLeaderEpoch()
            + ", \"magic\": " + batch.magic()
            + ", \"codec\": " + batch.compressionType().id
            + ", \"is_append_time\": " + (batch.timestampType() == TimestampType.LOG_APPEND_TIME)
            + ", \"is_transactional\": " + batch.isTransactional()
            + ", \"is_control\": " + batch.isControlBatch()
            + ", \"delete_horizon_ms\": " + batch.deleteHorizonMs().orElse(-1)
            + ", \"max_timestamp_ms\": " + batch.maxTimestamp()
            + ", \"producer_id\": " + batch.producerId()
            + ", \"producer_epoch\": " + batch.producerEpoch()
            + ", \"base_sequence\": " + batch.baseSequence()
            + ", \"size_bytes\": " + batch.sizeInBytes()
            + ", \"crc\": " + batch.checksum()
            + ",\n   \"records\": " + records + "}";
    }

    static String describe(Record record) {
        StringJoiner headers = new StringJoiner(", ", "[", "]");
        for (Header header : record.headers())
            headers.add("[" + hex(bytes(header.key())) + ", " + hex(header.value()) + "]");
        return "{\"offset\": " + record.offset()
            + ", \"timestamp_ms\": " + record.timestamp()
            + ", \"record_bytes\": " + record.sizeInBytes()
            + ", \"key\": " + hex(array(record.key()))
            + ", \"value\": " + hex(array(record.value()))
            + ", \"headers\": " + headers + "}";
    }

    static byte[] array(ByteBuffer buffer) {
        if (buffer == null) return null;
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return bytes;
    }

    static String hex(byte[] bytes) {
        return bytes == null ? "null" : '"' + HexFormat.of().formatHex(bytes) + '"';
    }
}
