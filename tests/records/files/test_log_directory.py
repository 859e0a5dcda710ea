from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ebbtide.errors import SourceError
from ebbtide.records.log_directory import (
    Manifest,
    ManifestFile,
    SegmentFile,
    list_log_directory,
    parse_partition_name,
    read_manifest,
)
from ebbtide.stores.store import AMBIENT, FileReader, encoded, file_name, join

TOPIC_ID = "aHf7KqZ2Rj2xw8VbE1mQ0g"


def put(root: Path, name: str, content: bytes | str = b"") -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def log(offset: int) -> str:
    return f"{offset:020d}.log"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A log directory with a partition of two segments."""
    put(tmp_path, f"flights-0/{log(0)}", b"abc")
    put(tmp_path, f"flights-0/{log(70)}")
    put(tmp_path, "flights-0/partition.metadata", f"version: 0\ntopic_id: {TOPIC_ID}")
    for path in tmp_path.rglob("*.log"):
        os.utime(path, ns=(0, 1_700_000_000_123_456_789))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("flights-0", ("flights", 0)),
        ("a-b.c_d-12", ("a-b.c_d", 12)),
        ("flights-1-2", ("flights-1", 2)),
        ("__consumer_offsets-49", ("__consumer_offsets", 49)),
        ("__cluster_metadata-0", None),
        ("flights", None),
        ("-1", None),
        ("flights-", None),
        ("flights-x", None),
        ("flights-0.0f8fad5bd9cb469fa16570867728950e-delete", None),
        ("flights-0.0f8fad5bd9cb469fa16570867728950e-future", None),
        ("flights-0.0f8fad5bd9cb469fa16570867728950e-stray", None),
        ("remote-log-index-cache", None),
    ],
)
def test_partition_names(name: str, parsed: tuple[str, int] | None) -> None:
    assert parse_partition_name(name) == parsed


def test_a_partition_is_listed_with_what_its_files_say(root: Path) -> None:
    put(root, "replication-offset-checkpoint", "0\n1\nflights 0 71\n")
    put(root, "log-start-offset-checkpoint", "0\n1\nflights 0 5\n")
    (partition,) = list_log_directory(str(root))
    assert (partition.topic, partition.partition, partition.path) == (
        "flights",
        0,
        f"{root}/flights-0",
    )
    assert (partition.topic_id, partition.high_watermark, partition.log_start_offset) == (
        TOPIC_ID,
        71,
        5,
    )
    assert partition.segments == (
        SegmentFile(f"{root}/flights-0/{log(0)}", 0, 3, 1_700_000_000_123),
        SegmentFile(f"{root}/flights-0/{log(70)}", 70, 0, 1_700_000_000_123),
    )


def test_a_plain_copy_says_less(root: Path) -> None:
    (root / "flights-0" / "partition.metadata").unlink()
    (partition,) = list_log_directory(str(root))
    assert (partition.topic_id, partition.high_watermark, partition.log_start_offset) == (
        None,
        None,
        None,
    )


def test_a_partition_the_checkpoints_do_not_hold_has_no_high_watermark_yet(root: Path) -> None:
    put(root, "replication-offset-checkpoint", "0\n0\n")
    put(root, "log-start-offset-checkpoint", "0\n0\n")
    (partition,) = list_log_directory(str(root))
    assert (partition.high_watermark, partition.log_start_offset) == (0, None)


def test_what_is_not_a_live_segment_or_partition_is_ignored(root: Path) -> None:
    for suffix in (".deleted", ".swap", ".cleaned"):
        put(root, f"flights-0/{log(3)}{suffix}")
    for name in (f"{0:020d}.index", f"{0:020d}.snapshot", "leader-epoch-checkpoint", "9.log"):
        put(root, f"flights-0/{name}")
    put(root, f"flights-1.0f8fad5bd9cb469fa16570867728950e-delete/{log(0)}")
    put(root, f"__cluster_metadata-0/{log(0)}")
    put(root, "meta.properties")
    put(root, "notes-7")
    (partition,) = list_log_directory(str(root))
    assert [segment.base_offset for segment in partition.segments] == [0, 70]


def test_partitions_come_by_topic_and_number_and_may_be_empty(root: Path) -> None:
    for name in ("flights-10", "flights-2", "airports-0"):
        (root / name).mkdir()
    listed = list_log_directory(str(root))
    names = [
        (directory.topic, directory.partition, len(directory.segments)) for directory in listed
    ]
    assert names == [("airports", 0, 0), ("flights", 0, 2), ("flights", 2, 0), ("flights", 10, 0)]


@pytest.mark.parametrize("uri", ["file:{}", "file://{}", "file://{}/"])
def test_a_uri_lists_as_its_path_does(root: Path, uri: str) -> None:
    (partition,) = list_log_directory(uri.format(root))
    assert [segment.size_bytes for segment in partition.segments] == [3, 0]
    assert partition.segments[0].path == f"{uri.format(root).rstrip('/')}/flights-0/{log(0)}"


@pytest.mark.parametrize("name", ["a#b", "a?b", "100%", "a%20b", "a b", "ä"])
def test_a_name_may_hold_what_a_uri_reads_otherwise(tmp_path: Path, name: str) -> None:
    root = tmp_path / name
    put(root, f"flights-0/{log(0)}", b"abc")
    for uri in (str(root), root.as_uri()):
        (partition,) = list_log_directory(uri)
        assert [segment.size_bytes for segment in partition.segments] == [3]
        with FileReader(partition.segments[0].path) as reader:
            assert bytes(reader.read(0, 9)) == b"abc"
    # As Iceberg and Hadoop write it: with a scheme, and nothing encoded.
    for location in (str(root), f"file:{root}", f"file://{root}"):
        assert AMBIENT.resolve(encoded(location))[1] == str(root)


def test_a_file_uri_has_neither_query_nor_fragment() -> None:
    assert AMBIENT.resolve("file:///a?b#c%23d")[1] == "/a?b#c#d"
    assert join("file:///a?b", "c") == "file:///a?b/c"
    assert file_name("file:///a?b/c#d") == "c#d"


def test_a_name_below_a_uri_is_encoded() -> None:
    assert join("s3://bucket/a?region=x", "b#c", "100%") == "s3://bucket/a/b%23c/100%25?region=x"
    assert join("/a?b", "b#c", "100%") == "/a?b/b#c/100%"


def test_a_fragment_of_a_uri_is_refused() -> None:
    with pytest.raises(SourceError, match=r"^s3://bucket/a#b: expected a URI without a fragment"):
        AMBIENT.resolve("s3://bucket/a#b")


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("replication-offset-checkpoint", "", "version 0 in line 1, found 'no line'"),
        ("replication-offset-checkpoint", "1\n0\n", "version 0 in line 1, found '1'"),
        (
            "replication-offset-checkpoint",
            "0\n2\nflights 0 71\n",
            "the number of lines, 1, in line 2, found '2'",
        ),
        (
            "replication-offset-checkpoint",
            "0",
            "the number of lines, 0, in line 2, found 'no line'",
        ),
        (
            "log-start-offset-checkpoint",
            "0\n2\nflights 0 71\nflights 71\n",
            "a topic, a partition and an offset in line 4, found 'flights 71'",
        ),
        (
            "log-start-offset-checkpoint",
            "0\n1\nflights 0 many\n",
            "a topic, a partition and an offset in line 3, found 'flights 0 many'",
        ),
    ],
)
def test_malformed_files_are_named_with_their_line(
    root: Path, name: str, text: str, complaint: str
) -> None:
    put(root, name, text)
    with pytest.raises(SourceError) as error:
        list_log_directory(str(root))
    assert str(error.value) == f"{root}/{name}: expected {complaint}. Copy the file again"


def error_of(root: Path) -> str:
    """What is wrong with the only partition."""
    (partition,) = list_log_directory(str(root))
    assert isinstance(partition.error, SourceError)
    assert partition.segments == ()
    return str(partition.error)


@pytest.mark.parametrize("text", ["version: 1\ntopic_id: x", "version: 0", "version: 0\ntopic_id:"])
def test_partition_metadata_without_a_topic_id_is_refused(root: Path, text: str) -> None:
    put(root, "flights-0/partition.metadata", text)
    assert "expected version 0 and a topic_id, found" in error_of(root)


def test_malformed_partition_metadata_is_named_with_its_line(root: Path) -> None:
    path = put(root, "flights-0/partition.metadata", "version 0")
    assert error_of(root) == (
        f"{path}: expected a name, a colon and a value in line 1, found 'version 0'. "
        "Copy the file again"
    )


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=f"{tmp_path}/none: expected a log directory, found none"):
        list_log_directory(str(tmp_path / "none"))


MANIFEST = {
    "files": {f"flights-0/{log(0)}": {"modified_ms": 17, "size_bytes": 3}},
    "topics": {"flights": {"config": {"cleanup.policy": "compact"}}},
    "last_append_ms": 123,
}


def test_a_manifest_gives_times_and_configuration(root: Path) -> None:
    put(root, "ebbtide-manifest.json", json.dumps(MANIFEST))
    assert read_manifest(str(root)) == Manifest(
        files={f"flights-0/{log(0)}": ManifestFile(modified_ms=17, size_bytes=3)},
        topic_configs={"flights": {"cleanup.policy": "compact"}},
        last_append_ms=123,
    )
    (partition,) = list_log_directory(str(root))
    assert [segment.modified_ms for segment in partition.segments] == [17, 1_700_000_000_123]


def test_a_directory_may_have_no_manifest(root: Path) -> None:
    assert read_manifest(str(root)) is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "AttributeError"),
        ('{"files": {"a": {"modified_ms": 1}}}', "KeyError: 'size_bytes'"),
        (
            '{"files": {"a": {"modified_ms": "1", "size_bytes": 2}}}',
            "TypeError: expected a whole number, found '1'",
        ),
        ('{"last_append_ms": 1.5}', "TypeError: expected a whole number, found 1.5"),
    ],
)
def test_a_malformed_manifest_is_refused(root: Path, text: str, complaint: str) -> None:
    put(root, "ebbtide-manifest.json", text)
    with pytest.raises(SourceError) as error:
        list_log_directory(str(root))
    assert str(error.value).startswith(f"{root}/ebbtide-manifest.json: expected an object of files")
    assert complaint in str(error.value)


def test_a_size_that_differs_from_the_manifests_is_refused(root: Path) -> None:
    put(root, "ebbtide-manifest.json", json.dumps(MANIFEST))
    put(root, f"flights-0/{log(0)}", b"abcd")
    assert error_of(root) == (
        f"{root}/flights-0/{log(0)}: expected 3 bytes, the size in "
        "ebbtide-manifest.json, found 4. Copy the file again, or write the manifest again"
    )


def test_an_unknown_file_system_is_named() -> None:
    with pytest.raises(
        SourceError, match=r"tape://logs: expected a path or a URI that pyarrow\.fs"
    ):
        AMBIENT.resolve("tape://logs")


def test_other_file_systems_are_pyarrows() -> None:
    file_system, path = AMBIENT.resolve("mock:///logs/flights-0")
    assert (file_system.type_name, path) == ("mock", "logs/flights-0")


@pytest.mark.parametrize(
    ("uri", "joined"),
    [
        ("/logs/", "/logs/t-0/x.log"),
        ("/what?/", "/what?/t-0/x.log"),
        ("s3://bucket/logs?region=eu", "s3://bucket/logs/t-0/x.log?region=eu"),
    ],
)
def test_names_are_joined_before_a_query(uri: str, joined: str) -> None:
    assert join(uri, "t-0", "x.log") == joined
    assert file_name(joined) == "x.log"
