"""Records to write, with KIP-87's tombstone, and the batches and segment files made of them.

Source: KIP-87 and Kafka's `ProducerRecord`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass, field

from ebbtide.errors import RequestError
from ebbtide.records.attributes import TOMBSTONE
from ebbtide.records.compression import Codec
from ebbtide.records.log_directory_writer import (
    BatchFields,
    Record,
    open_segment,
    segment_name,
    write_batch,
)
from ebbtide.stores.store import AMBIENT, join


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerRecord:
    """A record for a topic. Without a timestamp it gets the time at which its batch is built.

    `tombstone` marks it as a tombstone, which may then have a value. If `tombstone` is not given, a
    record with a null value is a tombstone, as before KIP-87. Raise RequestError for a null value
    with `tombstone=False`.
    """

    topic: str
    partition: int | None = None
    timestamp_ms: int | None = None
    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    tombstone: InitVar[bool | None] = None
    is_tombstone: bool = field(init=False)

    def __post_init__(self, tombstone: bool | None) -> None:
        if not self.topic:
            raise RequestError("expected a topic for the record, found none. Name the topic")
        for name, number in (("partition", self.partition), ("timestamp_ms", self.timestamp_ms)):
            if number is not None and number < 0:
                raise RequestError(f"expected a {name} of 0 or more, found {number}. Leave it out")
        if self.value is None and tombstone is False:
            raise RequestError(
                f"expected a value in a record of {self.topic} with tombstone=False, found null: a "
                "consumer before KIP-87 would read it as a tombstone. Give it a value, which may "
                "be empty, or leave `tombstone` off"
            )
        is_tombstone = self.value is None if tombstone is None else tombstone
        object.__setattr__(self, "is_tombstone", is_tombstone)


def build_batch(
    records: Sequence[ProducerRecord],
    base_offset: int,
    *,
    now_ms: int,
    codec: Codec = Codec.NONE,
    fields: BatchFields | None = None,
) -> bytes:
    """Build a batch of magic 2 with the records of one partition; offsets start at `base_offset`.

    Records without a timestamp get `now_ms`. `fields` has further header fields. Raise RequestError
    if the records are of several partitions.
    """
    places = {(record.topic, record.partition) for record in records}
    if len(places) != 1:
        raise RequestError(
            f"expected records of one partition in a batch, found {len(places)} partitions. Build "
            "one batch per partition"
        )
    written = [
        Record(
            base_offset + i,
            now_ms if record.timestamp_ms is None else record.timestamp_ms,
            record.key,
            record.value,
            [(name.encode(), value) for name, value in record.headers],
            TOMBSTONE if record.is_tombstone else 0,
        )
        for i, record in enumerate(records)
    ]
    return write_batch(fields or BatchFields(), written, codec)


def write_segment(directory: str, base_offset: int, batches: Iterable[bytes]) -> str:
    """Write the batches as the segment file with a base offset; return its path."""
    file_system, path = AMBIENT.resolve(directory)
    file_system.create_dir(path, recursive=True)
    uri = join(directory, segment_name(base_offset))
    with open_segment(uri) as stream:
        for batch in batches:
            stream.write(batch)
    return uri
