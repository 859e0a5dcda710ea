"""A topic from the properties of its tables: its settings and its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from ebbtide.kafka.low_watermarks import INVALID_LOW_WATERMARK
from ebbtide.layouts.layout import LAYOUT
from ebbtide.settings.config import TopicConfig, parse_config
from ebbtide.settings.names import TopicName
from ebbtide.state.deadline import Deadline, check_deadline
from ebbtide.state.topic_state import PRIMARY, PartitionState, parse_states

Name = TypeVar("Name", str, TopicName)


@dataclass(frozen=True)
class DescribedTopic(Generic[Name]):
    """A topic's properties when they were read from its tables; each is parsed once.

    Settings are properties of the records table, the state is in properties of the state table.
    """

    name: Name
    properties: Mapping[str, str]

    @cached_property
    def config(self) -> TopicConfig:
        """The validated configuration. Raise ConfigurationError if a property is wrong."""
        config = parse_config(self.properties)
        check_deadline(config, self.properties, is_adopted=self.is_adopted)
        return config

    @cached_property
    def deadline(self) -> Deadline | None:
        """The deadline by which deletes must be off the disk, or None if it is not set."""
        return Deadline.of(self.config, self.properties)

    @cached_property
    def partitions(self) -> dict[int, PartitionState]:
        """The state of each partition."""
        return parse_states(self.properties, str(self.name))

    @property
    def is_adopted(self) -> bool:
        """True if the topic's table is an adopted one (docs/adr/0016)."""
        return LAYOUT in self.properties

    @property
    def erased_under(self) -> str:
        """The name under which keys of the topic are erased: that of a replica's primary."""
        return self.properties.get(PRIMARY, str(self.name))

    @property
    def has_replicas(self) -> bool:
        """True if records must be removed from replicas of the log too."""
        return bool(self.config.replicas)

    def offsets_of(self, partition: int) -> dict[str, Any]:
        """Return a partition's offsets, for the result of a job that changes none of them."""
        state = self.partitions[partition]
        return {
            "log_start_offset": state.log_start_offset,
            "low_watermark": self.low_watermark(state.log_start_offset),
            "log_end_offset": state.log_end_offset,
        }

    def low_watermark(self, log_start_offset: int) -> int:
        """Return a partition's low watermark by its log start; -1 (unknown) with replicas."""
        return INVALID_LOW_WATERMARK if self.has_replicas else log_start_offset
