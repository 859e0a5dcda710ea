"""Draw the pictures of the docs as SVG, each in light and dark: `python -m docs.draw`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).parent / "pictures"
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of a picture."""

    name: str
    paper: str
    ink: str
    dim: str
    line: str
    fill: str
    good: str
    warn: str
    gone: str


LIGHT = Theme(
    "light", "#ffffff", "#1f2328", "#59636e", "#818b98", "#eef1f4", "#cfe8d5", "#fbe3b5", "#f2f2f2"
)
DARK = Theme(
    "dark", "#0d1117", "#e6edf3", "#9198a1", "#656c76", "#21262d", "#1f4a2c", "#5a4310", "#161b22"
)


@dataclass(slots=True)
class Picture:
    """An SVG in the making; lengths are pixels."""

    theme: Theme
    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def box(
        self, x: float, y: float, width: float, height: float, fill: str, *, dashed: bool = False
    ) -> None:
        """Draw a box with round corners."""
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" '
            f'stroke="{self.theme.line}"{dash}/>'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: int = 13,
        bold: bool = False,
        dim: bool = False,
        anchor: str = "middle",
    ) -> None:
        """Write a line; y is its baseline."""
        colour = self.theme.dim if dim else self.theme.ink
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="{colour}"'
            f"{weight}>{escape(words)}</text>"
        )

    def lines(self, x: float, y: float, lines: Sequence[str], **more: bool | int | str) -> None:
        """Write lines below each other."""
        for number, words in enumerate(lines):
            self.text(x, y + 17 * number, words, **more)  # type: ignore[arg-type]

    def arrow(self, x1: float, y1: float, x2: float, y2: float, *, dashed: bool = False) -> None:
        """Draw a line with a head at its end."""
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(
            f'<path d="M{x1} {y1} L{x2} {y2}" stroke="{self.theme.line}" stroke-width="1.5" '
            f'fill="none" marker-end="url(#head)"{dash}/>'
        )

    def svg(self) -> str:
        """Return the SVG's text."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" '
            f'height="{self.height}" viewBox="0 0 {self.width} {self.height}" role="img" '
            f'font-family="{FONT}">'
        )
        marker = (
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
            f'markerHeight="8" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{self.theme.line}"/>'
            "</marker></defs>"
        )
        paper = f'<rect width="{self.width}" height="{self.height}" fill="{self.theme.paper}"/>'
        title = f"<title>{escape(self.title)}</title>"
        return "\n".join([head, title, marker, paper, *self.parts, "</svg>\n"])


def tombstone(theme: Theme) -> Picture:
    """The life of a tombstone (KIP-534)."""
    picture = Picture(theme, 880, 300, "How a tombstone lives: from its append to its removal")
    steps = (
        (
            "appended",
            "tombstone of k",
            (("k=1", theme.fill), ("k=2", theme.fill), ("k=∅", theme.warn)),
        ),
        ("round 1", "horizon is set", (("", theme.gone), ("", theme.gone), ("k=∅", theme.warn))),
        (
            "horizon passes",
            "nothing happens",
            (("", theme.gone), ("", theme.gone), ("k=∅", theme.warn)),
        ),
        ("round 2", "tombstone removed", (("", theme.gone), ("", theme.gone), ("", theme.gone))),
    )
    for number, (name, below, records) in enumerate(steps):
        x = 20 + 215 * number
        picture.text(x + 90, 34, name, bold=True, size=14)
        for place, (words, fill) in enumerate(records):
            picture.box(x + 60 * place, 56, 54, 36, fill, dashed=not words)
            picture.text(x + 60 * place + 27, 79, words)
        picture.text(x + 90, 116, below, dim=True)
        if number:
            picture.arrow(x - 32, 74, x - 6, 74)
    picture.arrow(20, 170, 860, 170)
    picture.text(860, 160, "time", dim=True, anchor="end")
    for x, words in ((110, "t0"), (325, "t1"), (540, "t1 + delete.retention.ms"), (755, "t2")):
        picture.parts.append(f'<path d="M{x} 164 v12" stroke="{theme.line}" stroke-width="1.5"/>')
        picture.text(x, 196, words, dim=True, size=12)
    picture.lines(
        440,
        236,
        (
            "Round 1 removes the key's older records and sets the tombstone's delete horizon.",
            "A reader that lags by less than delete.retention.ms still sees the tombstone.",
            "The first round after the horizon removes it, also without new data.",
        ),
    )
    return picture


def byte_on_disk(theme: Theme) -> Picture:
    """The way of a removed record off the storage."""
    picture = Picture(theme, 880, 330, "What keeps the bytes of a removed record on storage")
    stages = (
        (
            "removed from the table",
            "clean_log, expire_segments,\ndelete_records, erase_keys",
            "the rule's limit or horizon\nthe end of a pause\nreplicas without the tombstone",
        ),
        (
            "file replaced",
            "the file is rewritten\nor removed entirely",
            "the end of the active segment\nenough deleted rows in a file\n"
            "(ebbtide.rewrite.deleted.ratio)",
        ),
        (
            "snapshots expired",
            "expire_snapshots expires\nthe last one that needs it",
            "the age of snapshots\nebbtide.undo.retention.ms\ntags and branches",
        ),
        (
            "freed",
            "expire_snapshots deletes\nthe file",
            "bucket versions, Object Lock,\nreplicas and backups:\nebbtide does not delete them",
        ),
    )
    picture.text(20, 34, "What happens", bold=True, anchor="start")
    picture.text(20, 190, "Waits for", bold=True, anchor="start")
    for number, (name, how, waits) in enumerate(stages):
        x = 20 + 215 * number
        picture.box(x, 50, 190, 104, theme.good if number == 3 else theme.fill)
        picture.text(x + 95, 78, name, bold=True)
        picture.lines(x + 95, 108, how.split("\n"), size=12)
        picture.box(x, 212, 190, 96, theme.warn, dashed=True)
        picture.lines(x + 95, 242, waits.split("\n"), size=12)
        picture.arrow(x + 95, 212, x + 95, 156, dashed=True)
        if number:
            picture.arrow(x - 24, 102, x - 2, 102)
    return picture


def delete_request(theme: Theme) -> Picture:
    """The way of a DeleteRecords request over replicas (KIP-107)."""
    picture = Picture(theme, 880, 350, "The way of a DeleteRecords request over replicas")
    picture.box(20, 130, 150, 74, theme.fill)
    picture.text(95, 160, "plan", bold=True)
    picture.text(95, 182, "delete_records", size=12, dim=True)
    picture.arrow(172, 167, 216, 167)
    picture.box(218, 130, 150, 74, theme.warn)
    picture.text(293, 160, "approval", bold=True)
    picture.text(293, 182, "by a person", size=12, dim=True)
    picture.arrow(370, 167, 414, 167)
    picture.box(416, 130, 170, 74, theme.fill)
    picture.text(501, 156, "the topic's tables", bold=True)
    picture.text(501, 176, "log start 0 → 1,200", size=12)
    picture.text(501, 194, "records removed", size=12, dim=True)
    targets = (
        (24, "table replica", "log start 0 → 1,200", theme.good),
        (130, "live topic", "Kafka's DeleteRecords: 1,200", theme.good),
        (236, "unreachable replica", "log start not known", theme.warn),
    )
    for y, name, words, fill in targets:
        picture.box(660, y, 200, 74, fill)
        picture.text(760, y + 30, name, bold=True)
        picture.text(760, y + 52, words, size=12)
        picture.arrow(588, 167, 658, y + 37)
    picture.lines(
        300,
        272,
        (
            "low watermark = lowest log start of the log and all replicas.",
            "It is -1 while a replica is unreachable; the next run asks it again.",
            "The asset of the topic publishes it: below it, nothing is left anywhere.",
        ),
    )
    return picture


PICTURES: Mapping[str, Callable[[Theme], Picture]] = {
    "tombstone": tombstone,
    "byte-on-disk": byte_on_disk,
    "delete-request": delete_request,
}


def drawn() -> dict[Path, str]:
    """Return the text of each file."""
    return {
        FOLDER / f"{name}-{theme.name}.svg": draw(theme).svg()
        for name, draw in PICTURES.items()
        for theme in (LIGHT, DARK)
    }


if __name__ == "__main__":
    for path, text in drawn().items():
        path.write_text(text)
