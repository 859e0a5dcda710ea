"""Which settings of the brokers are taken over at once, and which are only reported."""

from __future__ import annotations

import json

import pytest

from ebbtide.settings.config import LAYOUT, REMOVAL, Drift, drift_note, drifts, layout_of

BROKER = {
    "segment.bytes": "1073741824",
    "segment.ms": "604800000",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.after.max.ms": "3600000",
    "cleanup.policy": "delete",
    "retention.ms": "604800000",
    "retention.bytes": "-1",
    "delete.retention.ms": "86400000",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": "9223372036854775807",
    "compression.type": "producer",
}


def test_a_new_table_is_laid_out_as_the_log_is_and_removes_nothing() -> None:
    assert layout_of(BROKER) == {f"kafka.{name}": BROKER[name] for name in LAYOUT}
    assert not {f"kafka.{name}" for name in REMOVAL} & set(layout_of(BROKER))


def test_what_kafka_would_remove_by_default_is_drift_and_what_says_the_same_is_not() -> None:
    assert drifts(layout_of(BROKER), BROKER) == [
        Drift("kafka.cleanup.policy", None, "delete"),
        Drift("kafka.retention.ms", None, "604800000"),
    ]


@pytest.mark.parametrize(
    ("name", "here", "there", "differs"),
    [
        ("cleanup.policy", "compact,delete", "delete,compact", False),
        ("cleanup.policy", "compact", "delete", True),
        ("retention.ms", None, "-1", False),
        ("retention.ms", "-1", "-1", False),
        ("retention.ms", "-1", "5", True),
        ("retention.bytes", "5", "-1", True),
        ("min.cleanable.dirty.ratio", "0.50", "0.5", False),
        ("delete.retention.ms", None, "86400000", False),
        ("delete.retention.ms", None, "86400001", True),
        ("segment.bytes", None, "2000000", True),
        ("segment.bytes", None, "14", False),  # of an old Kafka; this version cannot have it
    ],
)
def test_a_setting_drifts_where_it_takes_effect_differently(
    name: str, here: str | None, there: str, differs: bool
) -> None:
    properties = {} if here is None else {f"kafka.{name}": here}
    assert bool(drifts(properties, {name: there})) is differs


def test_a_value_that_no_table_can_have_is_left_out() -> None:
    assert "kafka.segment.bytes" not in layout_of({**BROKER, "segment.bytes": "14"})


def test_the_note_holds_the_form_that_confirms() -> None:
    note = drift_note("log.flights", [Drift("kafka.retention.ms", None, "5")])
    assert note.startswith("1 settings differ from the brokers': kafka.retention.ms. To see ")
    form = json.loads(note[note.index("{") : note.index("}") + 1])
    assert form == {"topic": "log.flights", "from_source": True, "plan_only": True}
