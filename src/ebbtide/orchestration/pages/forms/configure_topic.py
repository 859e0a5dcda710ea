"""The form of configure_topic: the topic's settings, each to be changed or taken away."""

from __future__ import annotations

from typing import Any

from ebbtide.errors import RequestError
from ebbtide.orchestration.pages.forms.form import (
    Button,
    Field,
    Filled,
    Form,
    Group,
    Kind,
    plans_only,
    without_empty,
)

# Names of fields: a setting's new value, the value it had when the form was shown, and its box.
VALUE, WAS, UNSET = "value.", "was.", "unset."
NEW_NAME, NEW_VALUE = "new_name", "new_value"  # of rows for settings that are not set yet


def _params(filled: Filled) -> dict[str, Any]:
    unset = [name.removeprefix(UNSET) for name in filled.values if name.startswith(UNSET)]
    given = [f"{name}={value}" for name, value in _changed(filled) if name not in unset]
    from_source = filled.is_checked("from_source")
    if not (unset or given or from_source):
        raise RequestError("expected a setting that changes, found all as they were")
    params = {"topic": filled.text("topic"), "set": given or None, "unset": unset or None}
    return {
        **without_empty(params),
        "from_source": from_source,
        "plan_only": plans_only(filled),
    }


def _changed(filled: Filled) -> list[tuple[str, str]]:
    """Return the settings whose value is another one than the form has shown, and new ones."""
    changed = []
    for field, values in filled.values.items():
        name = field.removeprefix(VALUE)
        if name != field and values[-1].strip() != (filled.text(f"{WAS}{name}") or ""):
            changed.append((name, values[-1].strip()))
    names = filled.values.get(NEW_NAME, ())
    values = filled.values.get(NEW_VALUE, ())
    if len(names) != len(values):
        raise RequestError(
            "expected as many values as names of new settings, "
            f"found {len(values)} and {len(names)}"
        )
    for name, value in zip(names, values, strict=True):
        if name.strip():
            changed.append((name.strip(), value.strip()))
        elif value.strip():
            raise RequestError(f"expected a setting's name beside {value.strip()!r}, found none")
    return changed


FORM = Form(
    dag="configure_topic",
    title="Change settings",
    intro="Checks every value before anything changes, and shows what the next night would remove "
    "by the new settings. Where it would remove something, somebody has to approve it.",
    needs_topic=True,
    groups=(
        Group(
            legend="Settings",
            help="Names and ranges are Kafka's for kafka.*, and ours for ebbtide.*. What each does "
            "is on the page of the topic.",
            fields=(Field(name="settings", label="Settings", kind=Kind.SETTINGS),),
        ),
        Group(
            legend="Brokers",
            fields=(
                Field(
                    name="from_source",
                    label="Take over what the topic's brokers have differently",
                    kind=Kind.CHECK,
                ),
            ),
        ),
    ),
    buttons=(
        Button(
            name="plan",
            label="Plan only",
            help="shows what would change and what the next night would remove; nothing is set.",
        ),
        Button(
            name="ask",
            label="Set",
            help="sets it, once somebody has approved what the next night would remove.",
        ),
    ),
    params=_params,
)
