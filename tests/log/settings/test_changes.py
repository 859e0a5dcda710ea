import re

import pytest

from ebbtide.errors import ConfigurationError
from ebbtide.specs.settings_changes import parse_changes
from ebbtide.state.topic_state import MAX_SNAPSHOT_AGE, max_snapshot_age_ms


@pytest.mark.parametrize("age", ["0", "432000000", "9" * 18])
def test_a_snapshot_age_that_is_set_is_one_that_jobs_go_by(age: str) -> None:
    changes = parse_changes([f"{MAX_SNAPSHOT_AGE}={age}"], [])
    assert changes == {MAX_SNAPSHOT_AGE: age}
    assert max_snapshot_age_ms({MAX_SNAPSHOT_AGE: age}) == int(age)


@pytest.mark.parametrize("age", ["9" * 19, "\u0663", "\u00b2", "-1", "1.5", "5d", " 1", ""])
def test_a_snapshot_age_that_jobs_would_refuse_is_not_set(age: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"^expected a whole .* {re.escape(MAX_SNAPSHOT_AGE)}"
    ):
        parse_changes([f"{MAX_SNAPSHOT_AGE}={age}"], [])


def test_a_snapshot_age_is_unset_without_a_value() -> None:
    assert parse_changes([], [MAX_SNAPSHOT_AGE]) == {MAX_SNAPSHOT_AGE: None}
