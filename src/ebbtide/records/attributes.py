"""The bits of a record batch's attributes, and the values of absent header fields.

Source: Kafka's `DefaultRecordBatch` and `RecordBatch`.
"""

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
# If set, the base timestamp is the delete horizon (KIP-534).
DELETE_HORIZON = 0x40
# A bit of a record's own attributes, not the batch's: the record is a tombstone (KIP-87).
TOMBSTONE = 0x20

NO_TIMESTAMP = -1
NO_LEADER_EPOCH = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
