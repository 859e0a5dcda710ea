"""A table's metadata as Python values. Format: Iceberg table spec, table metadata and snapshots.

It is read from its JSON: one message to the JVM instead of one per value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.commits import JOB, LEFT, OWN, TOPIC
from ebbtide.moments import to_datetime

_ADDED = ("added-records",)
_REMOVED = ("deleted-records", "added-position-deletes", "added-equality-deletes")
_FILES = ("added-data-files", "deleted-data-files", "added-delete-files", "removed-delete-files")


class Snapshot(NamedTuple):
    """A snapshot of a table, and the summary of its commit.

    The summary names every commit of ebbtide on a data table. A commit that only moves rows to
    other files has the operation `replace`.
    """

    id: int
    sequence_number: int
    at_ms: int
    parent: int | None
    operation: str
    summary: Mapping[str, str]
    manifest_list: str
    schema_id: int | None

    @classmethod
    def build(cls, values: Mapping[str, Any]) -> Snapshot:
        """Build a snapshot from its JSON."""
        summary = dict(values.get("summary", {}))
        return cls(
            values["snapshot-id"],
            values.get("sequence-number", 0),
            values["timestamp-ms"],
            values.get("parent-snapshot-id"),
            summary.pop("operation", "None"),
            summary,
            values.get("manifest-list", "None"),
            values.get("schema-id"),
        )

    @property
    def is_own(self) -> bool:
        """True if a job of ebbtide made the commit."""
        return OWN in self.summary

    @property
    def job(self) -> str | None:
        """The job that made the commit, or None if ebbtide did not, or only an old version."""
        return self.summary.get(JOB)

    def is_of(self, topic: str) -> bool:
        """Return whether the commit is of this topic, or of a table that is one topic's alone."""
        return self.summary.get(TOPIC, topic) == topic

    @property
    def may_remove_rows(self) -> bool:
        """True if the commit may have removed records of the log.

        Rows that a killed ingest wrote past the log end offset are not part of the log.
        """
        return (
            self.operation != "replace"
            and LEFT not in self.summary
            and any(self.summary.get(name, "0") != "0" for name in _REMOVED)
        )

    @property
    def adds_rows(self) -> bool:
        """True if the commit may have added rows, rather than only moved some."""
        return self.operation != "replace" and self.summary.get("added-records", "0") != "0"

    @property
    def is_foreign(self) -> bool:
        """True if another tool made the commit and changed rows."""
        return not (self.is_own or self.operation == "replace") and any(
            self.summary.get(name, "0") != "0" for name in _FILES
        )

    def __str__(self) -> str:
        at = to_datetime(self.at_ms).isoformat(timespec="seconds")
        engine = self.summary.get("engine-name")
        by = f" by {engine} {self.summary.get('engine-version', '')}".rstrip() if engine else ""
        added, removed = (
            sum(int(self.summary.get(name, 0)) for name in names) for names in (_ADDED, _REMOVED)
        )
        return (
            f"{self.operation}{by} at {at} (snapshot {self.id}): {added} rows added, {removed} "
            "removed"
        )


class TableColumn(NamedTuple):
    """A column of the table's current schema."""

    name: str
    field_id: int
    default: Any = None  # in files that lack the column


@dataclass(frozen=True)
class TableMetadata:
    """The metadata of one version of a table; each part is read from the JSON once."""

    file: str  # its location, different for each version
    values: Mapping[str, Any]

    @classmethod
    def parse(cls, file: str, text: str) -> TableMetadata:
        """Read the JSON that Iceberg's TableMetadataParser writes."""
        return cls(file, json.loads(text))

    @property
    def uuid(self) -> str:
        """The table's id; a table that is dropped and created again has another one."""
        return str(self.values["table-uuid"])

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        properties: Mapping[str, str] = self.values.get("properties", {})
        return properties

    @property
    def last_sequence_number(self) -> int:
        """The sequence number of the newest commit on any branch."""
        return int(self.values.get("last-sequence-number", 0))

    @cached_property
    def snapshots(self) -> Mapping[int, Snapshot]:
        """All snapshots by id, in the order of the metadata."""
        built = map(Snapshot.build, self.values.get("snapshots", ()))
        return {snapshot.id: snapshot for snapshot in built}

    def snapshot(self, snapshot: int) -> Snapshot:
        """Return a snapshot; raise KeyError if the table no longer has it."""
        return self.snapshots[snapshot]

    @property
    def current(self) -> Snapshot | None:
        """The newest snapshot of the main branch, or None if nothing was ever written to it."""
        return self.snapshots.get(self.values.get("current-snapshot-id", -1))

    @property
    def refs(self) -> Mapping[str, Mapping[str, Any]]:
        """Branches and tags by name, each with its `snapshot-id` and `type`."""
        refs: Mapping[str, Mapping[str, Any]] = self.values.get("refs", {})
        return refs

    @property
    def unnamed(self) -> dict[int, int]:
        """Timestamps in ms, by id, of the snapshots that no branch or tag names."""
        named = {ref["snapshot-id"] for ref in self.refs.values()}
        return {
            snapshot.id: snapshot.at_ms
            for snapshot in self.snapshots.values()
            if snapshot.id not in named
        }

    def current_since(self, since_ms: int) -> set[int]:
        """Return the snapshots that were superseded at `since_ms` or later."""
        return {
            snapshot.parent
            for snapshot in self.snapshots.values()
            if snapshot.parent is not None and snapshot.at_ms >= since_ms
        }

    def tagged(self, name: str) -> int | None:
        """Return the id of the snapshot that a tag or branch names, or None if unknown."""
        ref = self.refs.get(name)
        return None if ref is None else int(ref["snapshot-id"])

    @cached_property
    def schema(self) -> Mapping[str, Any]:
        """The current schema."""
        return self.schema_of(self.values["current-schema-id"])

    def schema_of(self, schema_id: int | None) -> Mapping[str, Any]:
        """Return the schema with this id."""
        schema: Mapping[str, Any] = next(
            candidate for candidate in self.values["schemas"] if candidate["schema-id"] == schema_id
        )
        return schema

    @cached_property
    def columns(self) -> tuple[TableColumn, ...]:
        """The columns of the current schema, in its order."""
        return tuple(
            TableColumn(field["name"], field["id"], field.get("initial-default"))
            for field in self.schema["fields"]
        )

    @cached_property
    def specs(self) -> Mapping[int, tuple[tuple[str, str], ...]]:
        """The partition specs by their ids: the name and transform of each field, in order."""
        return {
            spec["spec-id"]: tuple((field["name"], field["transform"]) for field in spec["fields"])
            for spec in self.values["partition-specs"]
        }

    def find_after(self, name: str, value: str) -> int | None:
        """Return the newest snapshot in the history whose summary has `name` = `value`, or None."""
        snapshot = self.current
        while snapshot is not None:
            if snapshot.summary.get(name) == value:
                return snapshot.id
            snapshot = None if snapshot.parent is None else self.snapshots.get(snapshot.parent)
        return None

    def existing(self, snapshot: int, table: str) -> Snapshot:
        """Return a snapshot; raise CommitConflictError if another tool has expired it."""
        made = self.snapshots.get(snapshot)
        if made is None:
            raise CommitConflictError(
                f"expected snapshot {snapshot} of {table}, on which the work was planned, found "
                "none: another tool expired it meanwhile. Run the job again"
            )
        return made
