import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;

import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.DefaultRecord;
import org.apache.kafka.common.record.internal.DefaultRecordBatch;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.UnifiedLog;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.OptionalLong;

/** Writes one log as one JSON line: offsets, segments, batch headers, records, producers. */
final class LogDump {
    private static final JsonFactory FACTORY = new JsonFactory();
    private static final int ATTRIBUTES_POSITION = 21;

    private final UnifiedLog log;
    private final PrintStream results;
    private final ByteArrayOutputStream line = new ByteArrayOutputStream();
    private final JsonGenerator json;
    private List<MutableRecordBatch> keptBatches = List.of();

    LogDump(UnifiedLog log, PrintStream results) throws IOException {
        this.log = log;
        this.results = results;
        this.json = FACTORY.createGenerator(line);
    }

    /** Remembers the batches as they are now, for where retention comes between. */
    void keepBatches() throws IOException {
        keptBatches = new ArrayList<>();
        for (LogSegment segment : log.logSegments())
            batches(segment).forEach(keptBatches::add);
    }

    void write(String id, int round, String picked, long firstDirtyOffset, long bound, boolean withRecords)
            throws IOException {
        json.writeStartObject();
        json.writeStringField("id", id);
        json.writeNumberField("round", round);
        json.writeStringField("picked", picked);
        json.writeNumberField("first_dirty_offset", firstDirtyOffset);
        json.writeNumberField("first_uncleanable_offset", bound);
        json.writeNumberField("log_start_offset", log.logStartOffset());
        json.writeNumberField("log_end_offset", log.logEndOffset());
        json.writeNumberField("last_stable_offset", log.lastStableOffset());
        writeSegments();
        json.writeArrayFieldStart("batches");
        for (LogSegment segment : log.logSegments())
            for (MutableRecordBatch batch : batches(segment))
                writeBatch(batch);
        json.writeEndArray();
        json.writeArrayFieldStart("cleaned_batches");
        for (MutableRecordBatch batch : keptBatches)
            writeBatch(batch);
        json.writeEndArray();
        json.writeArrayFieldStart("records");
        if (withRecords)
            for (LogSegment segment : log.logSegments())
                for (MutableRecordBatch batch : batches(segment))
                    for (Record record : batch)
                        writeRecord(batch, record);
        json.writeEndArray();
        writeProducers();
        json.writeEndObject();
        json.close();
        // Whole lines only: what fails on the way leaves nothing behind.
        results.write(line.toByteArray());
        results.println();
    }

    static Iterable<MutableRecordBatch> batches(LogSegment segment) throws IOException {
        ByteBuffer buffer = ByteBuffer.allocate(segment.size());
        segment.log().readInto(buffer, 0);
        return MemoryRecords.readableRecords(buffer).batches();
    }

    /** COMMIT, ABORT or another control type; null for data and for an emptied control batch. */
    static String controlType(RecordBatch batch) {
        if (!batch.isControlBatch())
            return null;
        Iterator<Record> records = batch.iterator();
        return records.hasNext() ? ControlRecordType.parse(records.next().key()).name() : null;
    }

    private void writeSegments() throws IOException {
        json.writeArrayFieldStart("segments");
        for (LogSegment segment : log.logSegments()) {
            json.writeStartObject();
            json.writeNumberField("base_offset", segment.baseOffset());
            json.writeNumberField("last_modified_ms", segment.lastModified());
            json.writeNumberField("size_bytes", segment.size());
            json.writeNumberField("largest_timestamp_ms", segment.largestTimestamp());
            json.writeEndObject();
        }
        json.writeEndArray();
    }

    private void writeBatch(MutableRecordBatch batch) throws IOException {
        json.writeStartObject();
        json.writeNumberField("base_offset", batch.baseOffset());
        json.writeNumberField("last_offset", batch.lastOffset());
        json.writeNumberField("magic", batch.magic());
        json.writeStringField("compression", batch.compressionType().name);
        json.writeBooleanField("is_transactional", batch.isTransactional());
        json.writeBooleanField("is_control", batch.isControlBatch());
        json.writeStringField("control_type", controlType(batch));
        json.writeStringField("timestamp_type", batch.timestampType().name);
        writeOptional("delete_horizon_ms", batch.deleteHorizonMs());
        json.writeNumberField("producer_id", batch.producerId());
        json.writeNumberField("producer_epoch", batch.producerEpoch());
        json.writeNumberField("base_sequence", batch.baseSequence());
        json.writeNumberField("leader_epoch", batch.partitionLeaderEpoch());
        json.writeNumberField("max_timestamp_ms", batch.maxTimestamp());
        json.writeNumberField("size_bytes", batch.sizeInBytes());
        writeV2Fields(batch);
        json.writeEndObject();
    }

    private void writeV2Fields(MutableRecordBatch batch) throws IOException {
        if (batch instanceof DefaultRecordBatch v2) {
            ByteBuffer bytes = ByteBuffer.allocate(v2.sizeInBytes());
            v2.writeTo(bytes);
            json.writeNumberField("attributes", bytes.getShort(ATTRIBUTES_POSITION));
            json.writeNumberField("base_timestamp_ms", v2.baseTimestamp());
            json.writeNumberField("crc", v2.checksum());
            json.writeNumberField("record_count", v2.countOrNull());
        } else {
            json.writeNullField("attributes");
            json.writeNullField("base_timestamp_ms");
            json.writeNullField("crc");
            json.writeNullField("record_count");
        }
    }

    private void writeRecord(RecordBatch batch, Record record) throws IOException {
        json.writeStartObject();
        json.writeNumberField("offset", record.offset());
        json.writeNumberField("batch", batch.baseOffset());
        json.writeNumberField("timestamp_ms", record.timestamp());
        writeBytes("key", record.key());
        writeBytes("value", record.value());
        json.writeArrayFieldStart("headers");
        for (Header header : record.headers()) {
            json.writeStartArray();
            json.writeString(header.key());
            if (header.value() == null)
                json.writeNull();
            else
                json.writeBinary(header.value());
            json.writeEndArray();
        }
        json.writeEndArray();
        json.writeNumberField("attributes", record instanceof DefaultRecord v2 ? v2.attributes() : 0);
        json.writeBooleanField("is_control", batch.isControlBatch());
        json.writeEndObject();
    }

    /** What the cleaner asks for: each unexpired producer's epoch and last data offset. */
    private void writeProducers() throws IOException {
        json.writeArrayFieldStart("producers");
        for (var producer : log.lastRecordsOfActiveProducers().entrySet()) {
            json.writeStartObject();
            json.writeNumberField("producer_id", producer.getKey());
            json.writeNumberField("producer_epoch", producer.getValue().producerEpoch());
            writeOptional("last_data_offset", producer.getValue().lastDataOffset());
            json.writeEndObject();
        }
        json.writeEndArray();
    }

    private void writeOptional(String name, OptionalLong value) throws IOException {
        if (value.isPresent())
            json.writeNumberField(name, value.getAsLong());
        else
            json.writeNullField(name);
    }

    private void writeBytes(String name, ByteBuffer value) throws IOException {
        if (value == null)
            json.writeNullField(name);
        else
            json.writeBinaryField(name, Utils.toArray(value));
    }
}
