"""Hand files to Iceberg as JSON, all of them by a few calls to the JVM.

The JSON is that of Iceberg's ContentFileParser. A new file is described from its footer: Iceberg's
own reader of footers, ParquetUtil, loads Hadoop's configuration anew for each file, which takes
20 ms of CPU time. Format: Iceberg table spec, data_file and single-value serialization.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from ebbtide.iceberg.catalog import Table
from ebbtide.iceberg.files.manifests import ListedFile
from ebbtide.iceberg.topics import own_spec_id
from ebbtide.spark.jvm import ICEBERG, JavaMethod, iceberg_class, java_class
from ebbtide.stores.store import Store

if TYPE_CHECKING:
    from ebbtide.iceberg.files.file_commits import Replacement

# A file as JSON, as Iceberg's parser takes it.
Description = Mapping[str, Any]


# How many bytes a bound of a Parquet type takes; other types get none.
_BOUND_BYTES = {"BOOLEAN": 1, "INT32": 4, "INT64": 8}
# Of a text, as Iceberg's own writers cut its bounds. A last character from this on is not raised:
# surrogates follow it.
_BOUND_CHARACTERS, _LAST_RAISED = 16, chr(0xD7FF)
_FILES_AT_ONCE = 1000
_BUILDER = ICEBERG + "DataFiles$Builder"
_JSON_NODE = ICEBERG + "shaded.com.fasterxml.jackson.databind.JsonNode"


class DescribedFiles(NamedTuple):
    """A table, and what its files are handed over with."""

    spark: SparkSession
    store: Store
    specs: Any  # Java's map of the table's partition specs by their ids
    own_spec_id: int  # of new files

    @classmethod
    def of(cls, table: Table) -> DescribedFiles:
        """Read what the table's metadata says of its files."""
        return cls(table.spark, table.store, table.java.specs(), own_spec_id(table))

    def data(self, files: Iterable[Description]) -> Any:
        """Return a Java list of the described data files.

        The parser makes an Avro schema for each file, of 2 kB and more; a copy by the builder has
        the builder's.
        """
        copied = self._list()
        for spec_id, of_spec in groupby(files, itemgetter("spec-id")):
            builder = iceberg_class(self.spark, "DataFiles").builder(self.specs.get(spec_id))
            copy = JavaMethod.of(self.spark, _BUILDER, "copy", ICEBERG + "DataFile").on(builder)
            copy = copy.then(JavaMethod.of(self.spark, _BUILDER, "build"))
            for parsed in self._parsed(of_spec):
                copied.addAll(copy.map(parsed))
        return copied

    def deletes(self, files: Iterable[Description]) -> Any:
        """Return a Java list of the described deletion vectors."""
        deletes = self._list()
        for parsed in self._parsed(files):
            deletes.addAll(parsed)
        return deletes

    def read_new(self, replacements: Sequence[Replacement]) -> Iterator[Description]:
        """Yield the files that were written for segments, by their footers."""
        for unit, path in replacements:
            if path is not None:
                place = Place(self.own_spec_id, unit.partition, unit.segment, path)
                yield read_description(self.store, place)

    def _parsed(self, files: Iterable[Description]) -> Iterator[Any]:
        """Yield Java lists of the files, some at once: as JSON each takes kilobytes."""
        mapper = iceberg_class(self.spark, "util.JsonUtil").mapper()
        nodes_of = iceberg_class(self.spark, "relocated.com.google.common.collect.Iterables")
        parser = (ICEBERG + "ContentFileParser", "fromJson", _JSON_NODE, "java.util.Map")
        parse, left = JavaMethod.of(self.spark, *parser).with_last(1, self.specs), iter(files)
        while some := list(islice(left, _FILES_AT_ONCE)):
            nodes = self._list()
            nodes_of.addAll(nodes, mapper.readTree(json.dumps(some)))
            yield parse.map(nodes)

    def _list(self) -> Any:
        return java_class(self.spark, "java.util.ArrayList")()


def describe_listed(file: ListedFile) -> dict[str, Any]:
    """Return a file of a manifest as JSON, without its statistics."""
    described: dict[str, Any] = {
        "spec-id": file.spec_id,
        "content": "data" if file.is_data else "position-deletes",
        "file-path": file.path,
        "file-format": file.format.lower(),
        "partition": [_single_value(value) for value in file.partition.values()],
        "file-size-in-bytes": file.size_bytes,
        "record-count": file.rows,
    }
    if file.blob is not None:
        described["referenced-data-file"] = file.referenced
        described["content-offset"], described["content-size-in-bytes"] = file.blob
    return described


def _single_value(value: Any) -> Any:
    """Return a partition's value as Iceberg's JSON has it, of a spec that somebody has added."""
    if isinstance(value, date):
        return value.isoformat()
    return value.hex().upper() if isinstance(value, bytes) else value


class Place(NamedTuple):
    """The place of a data file in its table."""

    spec_id: int
    partition: int
    segment: int
    path: str


def read_description(store: Store, place: Place) -> dict[str, Any]:
    """Return the Parquet file at a place as `describe` says it."""
    with store.reading(place.path) as handle:
        file = pq.ParquetFile(handle)
        return describe(place, file.schema_arrow, file.metadata, handle.size())


def describe(
    place: Place, schema: pa.Schema, footer: pq.FileMetaData, size_bytes: int
) -> dict[str, Any]:
    """Return a data file as JSON.

    It has the counts of columns outside lists, and the bounds of those that are integers, times
    or truth values.
    """
    of_place = {"spec-id": place.spec_id, "partition": [place.partition, place.segment]}
    metrics = _metrics(_columns_of(schema), footer)
    return {**of_place, **_file(place.path, footer, size_bytes), **metrics}


def describe_small(
    path: str, schema: pa.Schema, footer: pq.FileMetaData, size_bytes: int
) -> dict[str, Any]:
    """Return a data file as JSON as `describe` does, without its place; texts have bounds too."""
    metrics = _metrics(_columns_of(schema), footer, has_texts=True)
    return {**_file(path, footer, size_bytes), **metrics}


def _file(path: str, footer: pq.FileMetaData, size_bytes: int) -> dict[str, Any]:
    return {
        "content": "data",
        "file-path": path,
        "file-format": "parquet",
        "file-size-in-bytes": size_bytes,
        "record-count": footer.num_rows,
        "split-offsets": [_start(footer.row_group(n)) for n in range(footer.num_row_groups)],
    }


def _start(group: pq.RowGroupMetaData) -> int:
    first = group.column(0)
    return int(first.dictionary_page_offset or first.data_page_offset)


def _metrics(
    columns: Sequence[_Column], footer: pq.FileMetaData, *, has_texts: bool = False
) -> dict[str, Any]:
    sizes, values, nulls = Counter[int](), Counter[int](), Counter[int]()
    lower: dict[int, int] = {}
    upper: dict[int, int] = {}
    widths: dict[int, int] = {}
    texts: dict[int, list[str]] = {}
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for number, (field_id, is_in_list) in enumerate(columns):
            column = group.column(number)
            statistics = column.statistics
            sizes[field_id] += column.total_compressed_size
            if is_in_list:
                continue
            values[field_id] += column.num_values
            nulls[field_id] += statistics.null_count
            if statistics.has_min_max and column.physical_type in _BOUND_BYTES:
                widths[field_id] = _BOUND_BYTES[column.physical_type]
                lower[field_id] = min(lower.get(field_id, statistics.min_raw), statistics.min_raw)
                upper[field_id] = max(upper.get(field_id, statistics.max_raw), statistics.max_raw)
            elif has_texts and column.physical_type == "BYTE_ARRAY" and statistics.has_min_max:
                texts.setdefault(field_id, []).extend((statistics.min, statistics.max))
    lowest = {field_id: _bound(lower[field_id], width) for field_id, width in widths.items()}
    highest = {field_id: _bound(upper[field_id], width) for field_id, width in widths.items()}
    for field_id, ends in texts.items():
        lowest[field_id] = _lower_text(min(ends))
        if (bound := _upper_text(max(ends))) is not None:
            highest[field_id] = bound
    return {
        "column-sizes": _by_id(sizes),
        "value-counts": _by_id(values),
        "null-value-counts": _by_id(nulls),
        "lower-bounds": _by_id(lowest),
        "upper-bounds": _by_id(highest),
    }


class _Column(NamedTuple):
    """A column of a Parquet file, by Iceberg's id."""

    field_id: int
    is_in_list: bool


def _columns_of(schema: pa.Schema) -> list[_Column]:
    """Return the columns of files with this schema, those in lists and structs included.

    A footer's own `schema` is not asked: it and the footer refer to each other, so that both stay
    in memory for long, and a job looks at many files.
    """
    return [column for field in schema for column in _leaves(field, is_in_list=False)]


def _leaves(field: pa.Field, *, is_in_list: bool) -> list[_Column]:
    inner = [field.type.field(number) for number in range(field.type.num_fields)]
    if not inner:
        return [_Column(int(field.metadata[b"PARQUET:field_id"]), is_in_list)]
    is_in_list |= not pa.types.is_struct(field.type)
    return [leaf for child in inner for leaf in _leaves(child, is_in_list=is_in_list)]


def _by_id(values: Mapping[int, object]) -> dict[str, list[object]]:
    """Return a map, as Iceberg writes it in JSON."""
    return {"keys": list(values), "values": list(values.values())}


def _bound(value: int, width: int) -> str:
    return value.to_bytes(width, "little", signed=True).hex().upper()


def _lower_text(text: str) -> str:
    return text[:_BOUND_CHARACTERS].encode().hex().upper()


def _upper_text(text: str) -> str | None:
    """Return a text that is as great or greater, or None if there is no short one."""
    if len(text) > _BOUND_CHARACTERS:
        cut = text[:_BOUND_CHARACTERS]
        if cut[-1] >= _LAST_RAISED:
            return None
        text = cut[:-1] + chr(ord(cut[-1]) + 1)
    return text.encode().hex().upper()
