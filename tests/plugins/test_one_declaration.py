"""A parameter that is added to a spec is on the command line, in the DAG, in the form and docs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from docs.generate import jobs_page
from ebbtide.orchestration.driver_inputs import options_of_params
from ebbtide.orchestration.house import params_of
from ebbtide.runner.command_line import job_parser
from ebbtide.specs.all_specs import FORMS, SPECS
from ebbtide.specs.filled import Filled
from ebbtide.specs.job_spec import section
from ebbtide.specs.params import CHOICE, FLAG, LINES, NUMBER, TEXT, JobParam
from tests.lake_sandbox import LakeSandbox

pytestmark = pytest.mark.usefixtures("known_dags")

HELP = "How the tide is."
ADDED: dict[str, tuple[JobParam, str, Any]] = {
    "text": (TEXT("the_tide", "The tide", HELP), "low", "low"),
    "number": (NUMBER("the_tide", "The tide", HELP), "7", 7),
    "lines": (LINES("the_tide", "The tide", HELP), "low\nhigh", ["low", "high"]),
    "flag": (FLAG("the_tide", "The tide", HELP), "1", True),
    "choice": (CHOICE("the_tide", "The tide", HELP, choices=("low", "high")), "high", "high"),
}


@pytest.mark.parametrize(
    ("job", "kind"), [*(("undo_run", kind) for kind in ADDED), ("adopt_table", "text")]
)
def test_what_is_added_to_a_spec_is_everywhere(
    viewer: Any, lake: LakeSandbox, monkeypatch: pytest.MonkeyPatch, job: str, kind: str
) -> None:
    param, typed, value = ADDED[kind]
    lake.topic("log.a")
    spec = replace(SPECS[job], sections=(*SPECS[job].sections, section("More", param)))
    for specs in (SPECS, FORMS):
        monkeypatch.setitem(specs, job, spec)
    assert params_of(spec)["the_tide"].resolve(value) == value
    arguments = options_of_params({"the_tide": value}, spec.asked)
    args, _ = job_parser(spec).parse_known_args(
        ["--run-id", "r", "--topic", "log.a", "--now", "2026-01-01T00:00:00Z", *arguments]
    )
    assert args.the_tide == value
    assert spec.read(Filled.of([("the_tide", typed)]))["the_tide"] == value
    html = viewer.get(f"/ebbtide/forms/{job}?topic=log.a").text
    assert 'name="the_tide"' in html
    assert HELP in html
    assert "| `the_tide` | `--the-tide` |" in jobs_page()
