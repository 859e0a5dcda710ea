"""Topics of one table: which settings each has, and how their names are found."""

import pytest

from ebbtide.errors import NotCoveredError, RequestError, UnknownTopicError
from ebbtide.layouts.layout import (
    LAYOUT,
    Choices,
    Columns,
    check_is_told,
    check_shares,
    table_properties,
    topic_names,
    topic_properties,
)
from ebbtide.layouts.recognition import recognise
from ebbtide.settings.names import TopicName
from tests.log.adopted.schemas import REDPANDA

TABLE, ONE, NONE = (TopicName.parse(f"raw.events{topic}") for topic in ("", "@one", "@None"))
PROPERTIES = {
    "kafka.segment.ms": "1",
    "kafka.segment.ms@one": "5",
    "kafka.retention.ms@the.one": "7",
}
OF_ONE = '{"profile": "p", "partition": 1, "offset": 2, "timestamp": 3}'
OF_SEVERAL = '{"profile": "p", "partition": 1, "offset": 2, "timestamp": 3, "is_shared": true}'


def test_a_topics_own_setting_goes_before_the_tables() -> None:
    assert topic_properties(ONE, PROPERTIES) == {"kafka.segment.ms": "5"}
    assert topic_properties(TABLE, PROPERTIES) == {"kafka.segment.ms": "1"}
    assert topic_properties(NONE, PROPERTIES) == {"kafka.segment.ms": "1"}


def test_a_change_is_of_the_topic_that_is_named() -> None:
    changes = {"kafka.segment.ms": "5", "kafka.retention.ms": None}
    assert table_properties(TABLE, changes) == changes
    assert table_properties(ONE, changes) == {
        "kafka.segment.ms@one": "5",
        "kafka.retention.ms@one": None,
    }


def test_topics_are_named_after_their_table() -> None:
    assert list(map(str, topic_names(TABLE, {"b", "a.c"}))) == ["raw.events@a.c", "raw.events@b"]
    with pytest.raises(RequestError, match="a topic name that Kafka takes"):
        topic_names(TABLE, {"a b"})


@pytest.mark.parametrize(
    ("name", "layout", "message"),
    [
        pytest.param(TABLE, OF_SEVERAL, "a table with several topics", id="which of them"),
        pytest.param(ONE, OF_SEVERAL, "found no state of it", id="not adopted"),
        pytest.param(ONE, OF_ONE, "found no state of it", id="the table is one topic"),
    ],
)
def test_a_name_that_no_topic_has_is_refused(name: TopicName, layout: str, message: str) -> None:
    with pytest.raises(UnknownTopicError, match=message):
        check_is_told(name, {LAYOUT: layout})


def test_a_table_without_topics_has_none() -> None:
    check_is_told(TABLE, {LAYOUT: OF_ONE})
    layout = recognise(Columns.of(REDPANDA), Choices()).layout
    check_shares(TABLE, layout)
    with pytest.raises(NotCoveredError, match="a table with a topic column"):
        check_shares(ONE, layout)
