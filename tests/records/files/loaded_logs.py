"""Directories of partitions as brokers, cleaners and copies leave them, and what is in them."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kafka.record.legacy_records import LegacyRecordBatchBuilder

from ebbtide.records.compression import Codec
from tests.tables.partition_log import T0, batch, checkpoint, partition_path


def files(*bases: int) -> dict[str, list[bytes]]:
    """Segments of five offsets each; the last one of all is empty."""
    return {f"{base:020}.log": [batch(base, 5)] if base < 15 else [] for base in bases}


@dataclass(frozen=True)
class Case:
    """A directory: files by name, what else is done to it, and the offsets that a broker serves.

    `refusal` is what ebbtide says of one that it does not take, since a copy must have made it so.
    """

    name: str
    files: Mapping[str, list[bytes]]
    offsets: list[int] = field(default_factory=list)
    also: Callable[[Path], object] = lambda _: None
    log_start_offset: int | None = None
    refusal: str = ""


def merged(suffix: str = "") -> dict[str, list[bytes]]:
    """The first two segments as the cleaner merges them, without offset 2."""
    kept = [batch(0, 2), batch(3, 2), batch(5, 5)]
    return {f"{0:020}.log{suffix}": kept}


def directory_at(base: int) -> Callable[[Path], object]:
    return lambda path: (path / f"{base:020}.log").mkdir()


def fifo_at(base: int) -> Callable[[Path], object]:
    return lambda path: os.mkfifo(path / f"{base:020}.log")


def socket_at(base: int) -> Callable[[Path], object]:
    return lambda path: os.mknod(path / f"{base:020}.log", stat.S_IFSOCK)


def link_at(base: int) -> Callable[[Path], object]:
    """Move a segment elsewhere and link to it, as tools do that spread a log over disks."""

    def link(path: Path) -> None:
        linked = path / f"{base:020}.log"
        elsewhere = path.parent / f"{path.name}.elsewhere"
        linked.rename(elsewhere)
        linked.symlink_to(elsewhere)

    return link


def link_to_nothing_at(base: int) -> Callable[[Path], object]:
    return lambda path: (path / f"{base:020}.log").symlink_to(path / "nothing")


def legacy(first: int, last: int) -> bytes:
    """A compressed batch of magic 1 up to the last offset; only its records tell the first."""
    builder = LegacyRecordBatchBuilder(1, int(Codec.GZIP), 1 << 20)
    for delta, offset in enumerate(range(first, last + 1)):
        builder.append(delta, T0 + offset, b"k%d" % (offset % 3), b"v%d" % offset)
    return last.to_bytes(8, "big") + bytes(builder.build())[8:]


WITHOUT_2 = [offset for offset in range(15) if offset != 2]
CASES = [
    Case("ordinary", files(0, 5, 10, 15), [*range(15)]),
    Case("swap before the old files go", files(0, 5, 10, 15) | merged(".swap"), WITHOUT_2),
    Case("swap after one old file went", files(5, 10, 15) | merged(".swap"), WITHOUT_2),
    Case("swap after all old files went", files(10, 15) | merged(".swap"), WITHOUT_2),
    Case(
        "swap and what it replaces as deleted",
        {**files(10, 15), **merged(".swap"), f"{0:020}.log.deleted": [batch(0, 5)]},
        WITHOUT_2,
    ),
    Case(
        "swap in the middle",
        {**files(0, 10, 15), f"{5:020}.log.swap": [batch(5, 2), batch(8, 2)]},
        [*range(5), 5, 6, 8, 9, *range(10, 15)],
    ),
    Case("cleaned and not swapped", files(0, 5, 10, 15) | merged(".cleaned"), [*range(15)]),
    Case(
        "swap of a split that was not complete",
        {
            **files(0, 5, 10, 15),
            f"{5:020}.log.swap": [batch(5, 2)],
            f"{5:020}.index.cleaned": [],
            f"{8:020}.log.cleaned": [batch(8, 2)],
        },
        [*range(15)],
    ),
    Case(
        "swap below a cleaned file",
        {
            **files(0, 5, 10, 15),
            f"{0:020}.log.swap": [batch(0, 2), batch(3, 2)],
            f"{5:020}.log.cleaned": [batch(5, 2)],
        },
        WITHOUT_2,
    ),
    Case(
        "empty swap",
        {**files(0, 5, 10, 15), f"{5:020}.log.swap": []},
        [*range(5), *range(10, 15)],
    ),
    Case(
        "deleted",
        {**files(5, 10, 15), f"{0:020}.log.deleted": [batch(0, 5)]},
        [*range(5, 15)],
    ),
    Case("directory", files(0, 5, 10, 15), [*range(15)], directory_at(3)),
    Case("fifo", files(0, 5, 10, 15), [*range(15)], fifo_at(3)),
    Case("socket", files(0, 5, 10, 15), [*range(15)], socket_at(3)),
    Case("link to a file", files(0, 5, 10, 15), [*range(15)], link_at(5)),
    Case("checkpoint below the first file", files(5, 10, 15), [*range(5, 15)], log_start_offset=2),
    Case("log start within a file", files(0, 5, 10, 15), [*range(7, 15)], log_start_offset=7),
    Case("index without a log", files(0, 5, 10, 15) | {f"{3:020}.index": []}, [*range(15)]),
    Case("nothing but an empty file", {f"{7:020}.log": []}, []),
]


def two_times(last: int, found: int) -> str:
    """What ebbtide says of a file that begins at or below the end of the one before it."""
    in_one, in_two = (
        f"above {last}, the last one of .*",
        rf"at or above {last + 1}, the end of the .*",
    )
    return f"expected offsets ({in_one}|{in_two}), found {found}[.:]"


CASES_REFUSED = [
    Case(
        "stale file behind a merged one",
        {**files(5, 10, 15), **merged()},
        WITHOUT_2,
        refusal=two_times(9, 5),
    ),
    Case(
        "file within another",
        {f"{0:020}.log": [batch(0, 10)], f"{5:020}.log": [batch(5, 5)]},
        [*range(10)],
        refusal=two_times(9, 5),
    ),
    Case(
        "files that overlap",
        {f"{5:020}.log": [batch(5, 5)], f"{8:020}.log": [batch(8, 5)]},
        [*range(5, 13)],
        refusal=two_times(9, 8),
    ),
    # The cleaner has removed offsets 15 and 16, and the next file still has them.
    Case(
        "files of magic 1 that overlap",
        {f"{10:020}.log": [batch(10, 5), legacy(17, 19)], f"{15:020}.log": [legacy(15, 19)]},
        [*range(10, 15), *range(17, 20)],
        refusal=two_times(19, 15),
    ),
    Case(
        "link to nothing",
        files(5, 10, 15),
        [*range(5, 15)],
        link_to_nothing_at(0),
        refusal="expected a segment file, found a link to a file that does not exist",
    ),
]


def write_case(root: Path, case: Case, topic: str) -> Path:
    """Write the directory of partition 0 of a topic."""
    directory = partition_path(root, 0, topic)
    directory.mkdir(parents=True)
    for name, batches in case.files.items():
        (directory / name).write_bytes(b"".join(batches))
    case.also(directory)
    if case.log_start_offset is not None:
        checkpoint(root, "log-start-offset-checkpoint", {0: case.log_start_offset}, topic)
    return directory
