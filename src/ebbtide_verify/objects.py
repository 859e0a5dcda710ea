"""The objects of an Iceberg table that its metadata names."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import fastavro

Read = Callable[[str], bytes]  # the bytes of the object at a URI

METADATA, LIST, MANIFEST = "table metadata", "manifest list", "manifest"
DATA, DELETES, STATISTICS = "data file", "delete file", "statistics"
_REMOVED = 2  # status of a manifest's entry: a file that its commit removed
_CONTENT = {0: DATA, 1: DELETES, 2: DELETES}


def parse_metadata(data: bytes) -> dict[str, Any]:
    """Return a table's metadata (Iceberg table spec, JSON, also compressed)."""
    text = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    metadata = json.loads(text)
    if not isinstance(metadata, dict) or "format-version" not in metadata:
        raise ValueError("expected the metadata of an Iceberg table, found none")
    return metadata


def reachable(metadata_uri: str, read: Read) -> dict[str, str]:
    """Return the kind of each object that a table's metadata names, by URI.

    These are its older metadata files, and the objects of all snapshots, also of those that only a
    branch or tag needs.
    """
    metadata = parse_metadata(read(metadata_uri))
    found = {metadata_uri: METADATA}
    found |= {older["metadata-file"]: METADATA for older in metadata.get("metadata-log", ())}
    for name in ("statistics", "partition-statistics"):
        found |= {file["statistics-path"]: STATISTICS for file in metadata.get(name, ())}
    for snapshot in metadata.get("snapshots", ()):
        for uri, kind in _of_snapshot(snapshot, read, found):
            found[uri] = kind
    return found


def _of_snapshot(
    snapshot: dict[str, Any], read: Read, known: dict[str, str]
) -> Iterator[tuple[str, str]]:
    manifests = list(snapshot.get("manifests", ()))  # of the oldest version of the spec
    if "manifest-list" in snapshot:
        yield snapshot["manifest-list"], LIST
        manifests += [row["manifest_path"] for row in _rows(read(snapshot["manifest-list"]))]
    for manifest in manifests:
        if manifest in known:
            continue
        yield manifest, MANIFEST
        for entry in _rows(read(manifest)):
            if entry["status"] != _REMOVED:
                file = entry["data_file"]
                yield file["file_path"], _CONTENT[file.get("content", 0)]


def _rows(data: bytes) -> Iterator[dict[str, Any]]:
    yield from fastavro.reader(io.BytesIO(data))  # type: ignore[misc]
