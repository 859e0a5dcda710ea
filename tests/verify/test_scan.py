"""Each format of a table's objects, written by its own library, with a key somewhere in it."""

from __future__ import annotations

import gzip
import io
import json
import uuid
from collections.abc import Callable

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from ebbtide_verify.scan import LEAST_BYTES, Hit, Rows, Sought, UnreadableError, search

KEY, OTHER, SHORT = b"alice@example.org", b"bob@example.org", b"42"
SOUGHT = Sought([KEY, OTHER, SHORT])
TEXTS = [f"text {n} of many" for n in range(100)]


def found(data: bytes) -> set[bytes]:
    return {SOUGHT.values[hit.sought] for hit in search(data, SOUGHT)}


def parquet(column: pa.Array, **options: object) -> bytes:
    target = io.BytesIO()
    pq.write_table(pa.table({"a": column}), target, **{"write_statistics": False, **options})
    return target.getvalue()


CELLS = pa.array([*(text.encode() for text in TEXTS), b"says " + KEY + b" here"], pa.binary())


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd", "lz4", "brotli"])
@pytest.mark.parametrize("options", [{}, {"use_dictionary": False}], ids=["dictionary", "plain"])
def test_a_key_in_a_compressed_page(codec: str, options: dict[str, object]) -> None:
    data = parquet(CELLS, compression=codec, **options)
    assert found(data) == {KEY}
    assert found(parquet(CELLS[:-1], compression=codec, **options)) == set()


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_a_key_that_an_encoding_splits(encoding: str) -> None:
    """The bytes that two cells begin with are stored once."""
    cells = pa.array([b"alice@example.com", KEY], pa.binary())
    options = {"use_dictionary": False, "compression": "none"}
    data = parquet(cells, **options, column_encoding={"a": encoding})
    assert (KEY in data) is (encoding == "DELTA_LENGTH_BYTE_ARRAY")
    assert found(data) == {KEY}


NESTED = {
    "list": pa.array([["x"], [KEY.decode(), "y"]]),
    "struct": pa.array([{"b": {"c": KEY}}, None]),
    "map's key": pa.array([[(KEY.decode(), 1)]], pa.map_(pa.string(), pa.int64())),
    "map's value": pa.array([[(1, KEY.decode())]], pa.map_(pa.int64(), pa.string())),
    "fixed size": pa.array([KEY], pa.binary(len(KEY))),
    "large text": pa.array([KEY.decode()], pa.large_string()),
    "dictionary": pa.array([KEY.decode()]).dictionary_encode(),
    "text view": pa.array([KEY.decode()], pa.string_view()),
    "binary view": pa.array([KEY], pa.binary_view()),
    "list view": pa.array([["x", KEY.decode()]], pa.list_view(pa.string())),
    "JSON": pa.array([json.dumps({"k": KEY.decode()})], pa.json_()),
}


@pytest.mark.parametrize("column", NESTED.values(), ids=NESTED)
def test_a_key_in_a_column_of_any_type(column: pa.Array) -> None:
    assert found(parquet(column, compression="zstd")) == {KEY}


PERSON = "0c4a1a1e-7d8f-4a55-9d4e-0d6b1f3b2c11"


@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT"])
@pytest.mark.parametrize("kind", [pa.uuid(), pa.binary(16)])
def test_the_text_of_a_uuid_finds_its_bytes(kind: pa.DataType, encoding: str) -> None:
    other = uuid.UUID(int=uuid.UUID(PERSON).int + 1)
    options = {"use_dictionary": False, "column_encoding": {"a": encoding}, "compression": "zstd"}

    def hits(*people: uuid.UUID) -> set[int]:
        cells = pa.array([person.bytes for person in people], kind)
        sought = Sought([b"x", PERSON.upper().encode()])
        return {hit.sought for hit in search(parquet(cells, **options), sought)}

    assert hits(other, uuid.UUID(PERSON)) == {1}
    assert hits(other) == set()


def test_keys_that_are_whole_numbers() -> None:
    """A number is compared in its column only: others have the same numbers."""
    cells = {"a": [4711471147, -5], "b": [{"c": 17}, {"c": 2**63 - 1}], "d": [42, 42]}
    values = [b"4711471147", b"-5", b"17", b"9223372036854775807", b"42", b"007", b"9" * 19]
    parquet, stripes = io.BytesIO(), io.BytesIO()
    pq.write_table(pa.table(cells), parquet)
    orc.write_table(pa.table(cells), stripes)
    for file in (parquet, stripes):
        found = {
            hit.sought for hit in search(file.getvalue(), Sought(values, numbers=("a", "b.c")))
        }
        assert found == {0, 1, 2, 3}
        assert search(file.getvalue(), Sought(values)) == set()


def test_a_key_in_a_footers_bounds() -> None:
    """Only its stored bytes have it: no row does."""
    target, cells = io.BytesIO(), pa.table({"a": CELLS[:-1]})
    with pq.ParquetWriter(target, cells.schema, compression="zstd") as writer:
        writer.write_table(cells)
        writer.add_key_value_metadata({"lower": KEY.decode()})
    assert {hit.place for hit in search(target.getvalue(), SOUGHT)} == {"stored bytes"}


def test_two_cells_are_not_one() -> None:
    cells = pa.array([KEY[:7], KEY[7:], KEY[:7]], pa.binary())
    assert found(parquet(cells, compression="zstd")) == set()


def test_all_keys_of_a_cell_are_found() -> None:
    cells = pa.array([KEY + OTHER, b"", None], pa.binary())
    assert found(parquet(cells, compression="zstd")) == {KEY, OTHER}


def test_rows_are_found_by_their_offsets() -> None:
    rows = pa.table({"partition": [0, 0, 1], "offset": [1, 3, 2], "p": [5, 5, 5], "o": [7, 8, 9]})
    with io.BytesIO() as file:
        pq.write_table(rows, file, row_group_size=1)
        data = file.getvalue()

    def places(*rows: object) -> list[str]:
        sought = Sought((), Rows(*rows))  # type: ignore[arg-type]
        return sorted(place for _, place in search(data, sought))

    assert places(0, 1, 2) == ["row group 0, 1 rows"]
    assert places(0, 1, 4) == ["row group 0, 1 rows", "row group 1, 1 rows"]
    assert places(0, 2, 3) == places(1, 0, 2) == places(1, 3, 9) == places(2, 0, 9) == []
    assert places(5, 8, 9, (("p", "o"), ("partition", "offset"))) == ["row group 1, 1 rows"]
    assert places(5, 8, 9, (("p", "none"), ("partition", "offset"))) == []


def test_a_short_key_is_a_whole_cell_or_none() -> None:
    assert len(SHORT) < LEAST_BYTES
    assert found(parquet(pa.array([b"x42", b"421"]), compression="zstd")) == set()
    assert found(parquet(pa.array([b"x42", SHORT]), compression="zstd")) == {SHORT}


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "zstandard"])
def test_a_key_in_a_bound_of_a_manifest(codec: str) -> None:
    bounds = {"type": "array", "items": "bytes"}
    schema = {"type": "record", "name": "file", "fields": [{"name": "lower", "type": bounds}]}
    target = io.BytesIO()
    fastavro.writer(target, schema, [{"lower": [b"x" * 500, KEY, b"x" * 500]}], codec)
    assert found(target.getvalue()) == {KEY}


def puffin(blob: bytes, codec: str | None) -> bytes:
    stored = bytes(pa.compress(blob, codec, asbytes=True)) if codec else blob
    described = {"type": "x", "fields": [], "offset": 4, "length": len(stored)}
    footer = json.dumps({"blobs": [described | ({"compression-codec": codec} if codec else {})]})
    size = len(footer).to_bytes(4, "little")
    return b"PFA1" + stored + b"PFA1" + footer.encode() + size + bytes(4) + b"PFA1"


@pytest.mark.parametrize("codec", [None, "zstd", "lz4"])
def test_a_key_in_a_statistic(codec: str | None) -> None:
    assert found(puffin(b"x" * 500 + KEY + b"x" * 500, codec)) == {KEY}
    assert found(puffin(b"x" * 500, codec)) == set()


@pytest.mark.parametrize("codec", ["uncompressed", "zlib", "zstd"])
def test_a_key_in_a_stripe(codec: str) -> None:
    target = io.BytesIO()
    orc.write_table(pa.table({"a": CELLS}), target, compression=codec)
    assert found(target.getvalue()) == {KEY}


def test_a_key_in_metadata() -> None:
    text = json.dumps({"properties": {"owner": KEY.decode()}}).encode() + b" " * 500
    assert found(text) == {KEY}
    assert found(gzip.compress(text)) == {KEY}


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[: len(data) // 2] + data[-12:],
    "a page is changed": lambda data: data[:60] + bytes(40) + data[100:],
    "encrypted": lambda data: b"PARE" + data[4:-4] + b"PARE",
    "zipped": lambda data: b"PK\x03\x04" + data,
    "a killed writer's": lambda data: data[:-1],
    "without its beginning": lambda data: data[1:],
    "packed": lambda data: bytes(pa.compress(data + KEY, "zstd", asbytes=True)),
}


@pytest.mark.parametrize("damage", BROKEN.values(), ids=BROKEN)
def test_what_cannot_be_read_is_never_called_searched(damage: Callable[[bytes], bytes]) -> None:
    data = damage(parquet(CELLS, compression="gzip"))
    with pytest.raises(UnreadableError):
        search(data, SOUGHT)


@pytest.mark.parametrize("codec", ["deflate", "snappy", "zstandard"])
def test_a_manifest_with_a_changed_bit_is_unreadable(codec: str) -> None:
    """Each codec has an error of its own."""
    schema = {"type": "record", "name": "file", "fields": [{"name": "lower", "type": "bytes"}]}
    target = io.BytesIO()
    fastavro.writer(target, schema, [{"lower": b"x" * 50 + KEY}], codec)
    data, failed = target.getvalue(), 0
    for place in range(len(data) - 40, len(data) - 16):
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        try:
            search(changed, SOUGHT)
        except UnreadableError:
            failed += 1
    assert failed


def test_a_column_of_an_unknown_type_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyArrow has no such type today: a float stands for it."""
    stripes = io.BytesIO()
    orc.write_table(pa.table({"a": [1.5]}), stripes)
    assert search(stripes.getvalue(), SOUGHT) == set()
    monkeypatch.setattr("ebbtide_verify.scan._PASSED", ())
    with pytest.raises(UnreadableError, match="column a has the type double"):
        search(stripes.getvalue(), SOUGHT)


def test_what_is_found_in_the_bytes_of_an_unreadable_object_is_told() -> None:
    with pytest.raises(UnreadableError) as raised:
        search(b"PARE" + KEY, SOUGHT)
    assert raised.value.hits == {Hit(0, "stored bytes")}
