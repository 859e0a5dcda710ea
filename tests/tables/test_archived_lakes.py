"""Every later version opens the lake of an older one, and ends as that would have."""

import pytest

from ebbtide.log.names import TopicName
from ebbtide.log.state import state_of
from ebbtide.tables.topics import java_table
from tests.tables.archived_lake import TOPICS, end_all, expected, opened


@pytest.mark.parametrize("archive", ["state_in_properties"])
def test_work_in_flight_ends_as_the_version_that_began_it_would_have_ended_it(
    archive: str,
) -> None:
    with opened(archive) as lake:
        found = end_all(lake.session)
        for topic, wanted in expected(archive).items():
            assert found[topic] == wanted, topic
        for topic in TOPICS:
            table = java_table(lake.session, TopicName("log", topic).records_table)
            assert state_of(dict(table.properties())) == {}
