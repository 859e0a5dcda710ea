"""All forms, by the DAG that each starts."""

from __future__ import annotations

from collections.abc import Mapping

from ebbtide.orchestration.pages.forms import (
    approve_plan,
    configure_topic,
    delete_records,
    erase_keys,
    hold_records,
    retention_now,
    undo_run,
)
from ebbtide.orchestration.pages.forms.form import Form

FORMS: Mapping[str, Form] = {
    of.FORM.dag: of.FORM
    for of in (
        delete_records,
        retention_now,
        configure_topic,
        erase_keys,
        hold_records,
        undo_run,
        approve_plan,
    )
}
