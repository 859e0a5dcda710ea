from __future__ import annotations

import re

import pytest

from ebbtide.errors import RequestError
from ebbtide.settings.names import TopicName, quoted, quoted_list

CLUSTER = (
    "expected a cluster name of up to 249 ASCII letters, digits, _ and -, other than 'ebbtide' and "
    "not ending in '_batches' or '_quarantine' or '_held' or '_state', found {!r}. Give the "
    "cluster another name"
)
TOPIC = (
    "expected a topic name that Kafka takes, of up to 249 ASCII letters, digits, ., _ and -, and "
    "neither . nor .., found {!r}"
)


@pytest.mark.parametrize(
    ("text", "cluster", "topic"),
    [
        pytest.param("log.flights", "log", "flights", id="a cluster and its topic"),
        pytest.param("log.a.b-c_d", "log", "a.b-c_d", id="a topic may hold dots"),
        pytest.param("log..a", "log", ".a", id="split at the first dot"),
        pytest.param("log....", "log", "...", id="three dots are no path"),
        pytest.param("log." + "a" * 249, "log", "a" * 249, id="the longest name of Kafka's"),
        pytest.param("raw.events@a.b", "raw", "events@a.b", id="one of several in a table"),
        pytest.param("raw.orders~dlq", "raw", "orders~dlq", id="Redpanda's dead letters"),
    ],
)
def test_a_name_is_cluster_and_topic(text: str, cluster: str, topic: str) -> None:
    assert TopicName.parse(text) == TopicName(cluster, topic)
    assert str(TopicName.parse(text)) == text


def test_a_replica_in_another_catalog_names_it() -> None:
    name = TopicName.parse("other:log.a.b")
    assert name == TopicName("log", "a.b", "other")
    assert str(name) == "other:log.a.b"
    assert name.records_table == "`other`.`log`.`a.b`"
    assert TopicName.parse("lake:log.t") == TopicName.parse("log.t")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("flights", "expected <cluster>.<topic>, found 'flights'", id="no cluster"),
        pytest.param(".flights", "expected <cluster>.<topic>, found '.flights'", id="nameless"),
        pytest.param("log.", "expected <cluster>.<topic>, found 'log.'", id="empty topic"),
        pytest.param("", "expected <cluster>.<topic>, found ''", id="nothing"),
        pytest.param(":log.t", "expected <cluster>.<topic>, found ':log.t'", id="empty catalog"),
        pytest.param("ebbtide.runs", CLUSTER.format("ebbtide"), id="our own namespace"),
        pytest.param("log_batches.a", CLUSTER.format("log_batches"), id="a batch namespace"),
        pytest.param("log_quarantine.a", CLUSTER.format("log_quarantine"), id="a quarantine"),
        pytest.param("log_state.a", CLUSTER.format("log_state"), id="a state namespace"),
        pytest.param("log/../x.a", CLUSTER.format("log/"), id="a cluster that is a path"),
        pytest.param("l g.a", CLUSTER.format("l g"), id="a blank in a cluster"),
        *(
            pytest.param(f"log.{topic}", TOPIC.format(topic), id=f"{topic[:9]!r} is no topic")
            for topic in (".", "..", "../x", "/etc", "a/b", "a b", "a\n", "ä", "a`b", "a" * 250)
        ),
        pytest.param(
            "../up:log.t", "expected <cluster>.<topic>, found '../up:log.t'", id="catalog with dots"
        ),
        pytest.param(
            "a/b:log.t",
            "expected a catalog name of ASCII letters, digits, _ and -, found 'a/b'",
            id="a catalog that is a path",
        ),
        *(
            pytest.param(
                f"log.a__{view}",
                "expected a topic name without the suffix of a view "
                f"(__committed, __null_tombstones, __latest), found 'a__{view}'",
                id=f"a view's name, {view}",
            )
            for view in ("committed", "null_tombstones", "latest")
        ),
    ],
)
def test_other_names_are_refused(text: str, message: str) -> None:
    with pytest.raises(RequestError, match=f"^{re.escape(message)}$"):
        TopicName.parse(text)


def test_a_cluster_with_a_dot_is_refused() -> None:
    with pytest.raises(RequestError, match=f"^{re.escape(CLUSTER.format('a.b'))}$"):
        TopicName.checked("a.b", "flights")


def test_a_topic_is_two_tables_and_three_views() -> None:
    name = TopicName.parse("log.a.b")
    assert name.records_table == "`lake`.`log`.`a.b`"
    assert name.batches_table == "`lake`.`log_batches`.`a.b`"
    assert name.committed_view == "`lake`.`log`.`a.b__committed`"
    assert name.null_tombstones_view == "`lake`.`log`.`a.b__null_tombstones`"
    assert name.latest_view == "`lake`.`log`.`a.b__latest`"


def test_topics_of_one_table_have_a_state_each() -> None:
    name = TopicName.parse("raw.events@a.b")
    assert (name.table, name.in_table) == ("events", "a.b")
    assert name.records_table == "`lake`.`raw`.`events`"
    assert name.state_table == "`lake`.`raw_state`.`events@a.b`"
    assert TopicName.parse("raw.events").in_table is None


@pytest.mark.parametrize("topic", ["@a", "a@", "a@b@c", "a~b", "~dlq", "a@b~dlq", "a@."])
def test_names_that_no_adopted_table_gives_are_refused(topic: str) -> None:
    with pytest.raises(RequestError, match="expected a topic name that Kafka takes"):
        TopicName.parse(f"raw.{topic}")


@pytest.mark.parametrize("topic", ["events@orders", "orders~dlq"])
def test_no_topic_of_ours_has_the_name_of_an_adopted_one(topic: str) -> None:
    with pytest.raises(RequestError, match="expected a topic name that Kafka takes"):
        TopicName.checked("raw", topic)


def test_a_backtick_is_quoted_too() -> None:
    assert quoted("a`b", "c") == "`a``b`.`c`"


def test_names_in_a_message() -> None:
    assert quoted_list(["a", "b"]) == "'a', 'b'"
