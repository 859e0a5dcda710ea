"""The reference pages say what the code does, and the README stays a page."""

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from docs.draw import drawn
from docs.generate import ALERTS, DOCS, PAGES, VARIABLES, page
from ebbtide.errors import EbbtideError
from ebbtide.settings.config import RENAMED, SETTINGS
from ebbtide.specs.all_specs import SPECS
from ebbtide.specs.settings_changes import EFFECTS, HEADERS, STATE, SUMMARY

ROOT = Path(__file__).resolve().parent.parent
CODE = [
    path for folder in ("src", "jobs", "dags", "plugins") for path in (ROOT / folder).rglob("*.py")
]
NAME = re.compile(r"(?:kafka|ebbtide)(?:\.[a-z][a-z0-9_-]*)+\.?")
# Names of that form which are no property of a table and no header.
OTHERS = {
    *RENAMED,
    "ebbtide.orchestration",  # the package
    "ebbtide.orchestration.pages",
    "ebbtide.zip",  # what Spark gets of it
    "kafka.isolation.level",  # an option of Spark's source
    "kafka.batch_base_offset",  # a field of the tables of AutoMQ
    "ebbtide.orchestration.several_runs",  # a module
}
ERROR_TABLE = ROOT / "docs" / "troubleshooting.md"
METRICS = ROOT / "docs" / "monitoring.md"
INDEX = ROOT / "docs" / "README.md"
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
ANCHOR = re.compile(r"\]\(([^)#:]*)#([^)]+)\)")


@pytest.mark.parametrize("file", sorted(PAGES))
def test_a_generated_page_is_what_the_code_says(file: str) -> None:
    assert (DOCS / file).read_text() == PAGES[file](), "run make docs"


@pytest.mark.parametrize("path", drawn(), ids=lambda path: path.name)
def test_a_picture_is_what_the_code_draws(path: Path) -> None:
    assert path.read_text() == drawn()[path], "run make docs"


def test_alerts_use_gauges_that_are_sent() -> None:
    """Exporters disagree on the names of counters, and on what they show."""
    used = set(re.findall(r"airflow_ebbtide_(\w+)", ALERTS.read_text()))
    gauges = set(re.findall(r"^\| `ebbtide\.(\w+)` \| gauge \|", METRICS.read_text(), re.MULTILINE))
    assert len(used) > 10
    assert used <= gauges


def test_each_setting_has_its_effect_and_nothing_else_has() -> None:
    assert set(EFFECTS) == set(SETTINGS)


def names_in_the_code() -> Iterator[str]:
    """Each text of the code that is such a name, whole or up to its variable part."""
    for path in CODE:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                name = node.value.partition("=")[0]
                if NAME.fullmatch(name):
                    yield name


def test_every_property_that_the_code_names_is_on_the_page() -> None:
    known = {**EFFECTS, **STATE, **SUMMARY, **HEADERS}
    named = set(names_in_the_code()) - OTHERS
    assert len(named) > 40
    beginnings = {name for name in named if name.endswith(".")}
    missing = {name for name in named - beginnings if name not in known}
    missing |= {b for b in beginnings if not any(fnmatchcase(name, f"{b}*") for name in known)}
    assert not missing
    assert all(name in page() for name in known)


def test_every_variable_for_users_is_on_the_page() -> None:
    code = "".join(path.read_text() for path in CODE)
    endings = "SCHEDULE|SOURCE|CLUSTER|CONNECTION|NOTIFIER|PATTERN|SLOTS|APPROVERS|TIMEOUT|EYES"
    endings += "|SIGNING_KEY|PUBLIC_KEY|SECRETS|TIMESTAMP_URL"
    assert set(re.findall(rf"EBBTIDE_(?:[A-Z_]+_)?(?:{endings})(?![A-Z_])", code)) == set(VARIABLES)


def subclasses(kind: type[EbbtideError]) -> set[type[EbbtideError]]:
    below = [subclasses(each) for each in kind.__subclasses__()]
    return {kind}.union(*below)


ERRORS = {kind.__name__: kind for kind in subclasses(EbbtideError) - {EbbtideError}}


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_the_table_of_errors_says_of_each_whether_a_retry_helps(name: str) -> None:
    answer = "yes" if ERRORS[name].transient else "no"
    assert re.search(rf"^\| `{name}` \|.*\| {answer} \|", ERROR_TABLE.read_text(), re.MULTILINE)


def test_each_place_that_can_be_erased_names_a_test_that_there_is() -> None:
    tables = (DOCS / "what_can_be_erased.md").read_text().split("## Never freed by ebbtide")
    tried, untried = ({row[-1] for row in _rows(part)} for part in tables)
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    known = re.findall(r"^def (test_\w+)\(", sources, re.MULTILINE)
    assert tried - {f"`{name}`" for name in known} == {"tested by"}
    assert untried == {"tested by", "untested"}


def _rows(text: str) -> Iterator[list[str]]:
    for line in re.findall(r"^\| (.+) \|$", text, re.MULTILINE):
        yield line.split(" | ")


def test_the_index_has_the_page_of_each_job() -> None:
    named = re.findall(r"^\| `([a-z_]+)` \|.*\]\(", INDEX.read_text(), re.MULTILINE)
    assert sorted(named) == sorted(path.stem for path in (ROOT / "jobs").glob("*.py"))


def test_each_job_is_declared() -> None:
    assert SPECS.keys() == {path.stem for path in (ROOT / "jobs").glob("*.py")}


def test_each_job_has_a_folder_of_tests_of_its_name() -> None:
    folders = {path.parent.name for path in (ROOT / "tests" / "jobs").glob("*/test_*.py")}
    assert {path.stem for path in (ROOT / "jobs").glob("*.py")} <= folders


def test_the_readme_is_read_in_two_minutes() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 110


SOURCES = pytest.mark.parametrize(
    "source",
    [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))],
    ids=lambda path: str(path.relative_to(ROOT)),
)


@SOURCES
def test_links_lead_to_files(source: Path) -> None:
    targets = LINK.findall(source.read_text())
    assert [target for target in targets if not (source.parent / target).exists()] == []


@SOURCES
def test_links_lead_to_headings(source: Path) -> None:
    links = ANCHOR.findall(source.read_text())
    assert [
        (target, anchor)
        for target, anchor in links
        if anchor not in anchors(source.parent / target if target else source)
    ] == []


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
