"""Find the settings of a topic's brokers that its table lacks, to copy them."""

from __future__ import annotations

from ebbtide.brokers.live_topic import LiveTopic
from ebbtide.errors import ConfigurationError
from ebbtide.iceberg.topics import Topic
from ebbtide.log.settings.drift import drifts
from ebbtide.log.settings.upstream import SOURCE
from ebbtide.stages.ingest_segments.append import check_topic_id


def changes_from_source(topic: Topic) -> dict[str, str | None]:
    """Return each setting that differs, as the brokers of the topic's source have it."""
    upstream = topic.config.upstream
    if upstream is None or upstream.connection is None:
        raise ConfigurationError(
            f"expected {SOURCE}=kafka:<connection> for {topic.name}, found "
            f"{upstream or 'no such property'}; ingest_topic sets it, or configure_topic"
        )
    live = LiveTopic.connect(upstream.connection, topic.name.topic)
    check_topic_id(topic, live.description.topic_id, f"connection {upstream.connection!r}")
    return {drift.name: drift.broker for drift in drifts(topic.properties, live.configs)}
