"""All forms, by the DAG that each starts, in the sections of their list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ebbtide.orchestration.pages.forms import (
    approve_plan,
    configure_topic,
    delete_records,
    erase_keys,
    hold_records,
    mark_tombstones,
    repair_state,
    retention_now,
    undo_run,
)
from ebbtide.orchestration.pages.forms.direct import (
    abandon_table,
    adopt_table,
    export_segments,
    ingest_segments,
    ingest_table,
    ingest_topic,
    nightly_retention,
    replicate_log,
)
from ebbtide.orchestration.pages.forms.form import Form


class Section(NamedTuple):
    """Forms that have something in common, which its text says."""

    title: str
    text: str
    forms: Sequence[Form]


SECTIONS: Sequence[Section] = (
    Section(
        "Remove, hold, bring back, repair",
        "Each plans first and shows what would go. Nothing is removed before somebody has approved "
        "the plan.",
        (
            delete_records.FORM,
            retention_now.FORM,
            configure_topic.FORM,
            erase_keys.FORM,
            hold_records.FORM,
            undo_run.FORM,
            mark_tombstones.FORM,
            repair_state.FORM,
            approve_plan.FORM,
        ),
    ),
    Section(
        "Bring in, keep up, copy out",
        "These start at once and ask nobody.",
        (
            ingest_topic.FORM,
            ingest_segments.FORM,
            ingest_table.FORM,
            nightly_retention.FORM,
            replicate_log.FORM,
            export_segments.FORM,
        ),
    ),
    Section(
        "Tables that others write",
        "Each can show first what it would change.",
        (adopt_table.FORM, abandon_table.FORM),
    ),
)
FORMS: Mapping[str, Form] = {form.dag: form for section in SECTIONS for form in section.forms}
