"""Every later version opens the lake of an older one, and ends as that would have."""

import pytest

from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import Step
from ebbtide.log.settings.names import TopicName
from ebbtide.log.state.topic_state import state_of
from tests.nights.archived_lake import NIGHT_MS, TOPICS, end_all, expected, opened
from tests.tables.fixtures import KilledError
from tests.tables.nights import DAY_MS, clean

pytestmark = pytest.mark.long


@pytest.mark.parametrize("archive", ["state_in_properties"])
def test_work_in_flight_ends_as_the_version_that_began_it_would_have_ended_it(
    archive: str, kill_at: list[Step]
) -> None:
    with opened(archive) as lake:
        for step in (Step.PROBE, Step.STATE_TABLE, Step.STATE_MOVED):
            kill_at.append(step)
            with pytest.raises(KilledError):
                clean(lake.session, "log.planned", NIGHT_MS + 2 * DAY_MS)
        ended = end_all(lake.session)
        assert ended.keys() == expected(archive).keys()
        for topic, wanted in expected(archive).items():
            assert ended[topic] == wanted, topic
        for topic in TOPICS:
            table = java_table(lake.session, TopicName("log", topic).records_table)
            assert state_of(dict(table.properties())) == {}
