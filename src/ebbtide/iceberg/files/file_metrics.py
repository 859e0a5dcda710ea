"""Describe a data file that Python has written for Iceberg.

Iceberg's own reader of footers, ParquetUtil, loads Hadoop's configuration anew for each file, which
takes 20 ms of CPU time. Format: Iceberg table spec, data_file and single-value serialization; the
JSON is that of ScanTaskParser.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ebbtide.stores.store import Store

# How many bytes a bound of a Parquet type takes; other types get none.
_BOUND_BYTES = {"BOOLEAN": 1, "INT32": 4, "INT64": 8}


class Place(NamedTuple):
    """The place of a data file in its table."""

    spec_id: int
    partition: int
    segment: int
    path: str


def read_description(store: Store, place: Place) -> dict[str, Any]:
    """Return the Parquet file at a place as `describe` says it."""
    with store.reading(place.path) as handle:
        return describe(place, pq.ParquetFile(handle).metadata, handle.size())


def describe(place: Place, footer: pq.FileMetaData, size_bytes: int) -> dict[str, Any]:
    """Return a data file as JSON.

    It has the counts of columns outside lists, and the bounds of those that are integers, times
    or truth values.
    """
    return {
        "spec-id": place.spec_id,
        "content": "data",
        "partition": [place.partition, place.segment],
        "file-path": place.path,
        "file-format": "parquet",
        "file-size-in-bytes": size_bytes,
        "record-count": footer.num_rows,
        "split-offsets": [_start(footer.row_group(n)) for n in range(footer.num_row_groups)],
        **_metrics(footer),
    }


def _start(group: pq.RowGroupMetaData) -> int:
    first = group.column(0)
    return int(first.dictionary_page_offset or first.data_page_offset)


def _metrics(footer: pq.FileMetaData) -> dict[str, Any]:
    ids = _field_ids(footer)
    sizes, values, nulls = Counter[int](), Counter[int](), Counter[int]()
    lower: dict[int, int] = {}
    upper: dict[int, int] = {}
    widths: dict[int, int] = {}
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for number, field_id in enumerate(ids):
            column = group.column(number)
            statistics = column.statistics
            sizes[field_id] += column.total_compressed_size
            if footer.schema.column(number).max_repetition_level:
                continue  # within a list
            values[field_id] += column.num_values
            nulls[field_id] += statistics.null_count
            if statistics.has_min_max and column.physical_type in _BOUND_BYTES:
                widths[field_id] = _BOUND_BYTES[column.physical_type]
                lower[field_id] = min(lower.get(field_id, statistics.min_raw), statistics.min_raw)
                upper[field_id] = max(upper.get(field_id, statistics.max_raw), statistics.max_raw)
    return {
        "column-sizes": _by_id(sizes),
        "value-counts": _by_id(values),
        "null-value-counts": _by_id(nulls),
        "lower-bounds": _by_id({of: _bound(lower[of], widths[of]) for of in lower}),
        "upper-bounds": _by_id({of: _bound(upper[of], widths[of]) for of in upper}),
    }


def _field_ids(footer: pq.FileMetaData) -> list[int]:
    """Return Iceberg's ids of the columns, nested ones in lists and structs included."""
    schema = footer.schema.to_arrow_schema()
    leaves = [leaf for field in schema for leaf in _leaves(field)]
    return [int(leaf.metadata[b"PARQUET:field_id"]) for leaf in leaves]


def _leaves(field: pa.Field) -> list[pa.Field]:
    inner = [field.type.field(number) for number in range(field.type.num_fields)]
    return [leaf for child in inner for leaf in _leaves(child)] if inner else [field]


def _by_id(values: Mapping[int, object]) -> dict[str, list[object]]:
    """Return a map, as Iceberg writes it in JSON."""
    return {"keys": list(values), "values": list(values.values())}


def _bound(value: int, width: int) -> str:
    return value.to_bytes(width, "little", signed=True).hex().upper()
