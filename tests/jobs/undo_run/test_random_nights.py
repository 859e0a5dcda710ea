"""An undo after any ingests and nights leaves what there would be without any of those nights."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from ebbtide.iceberg.commits import Step
from ebbtide.jobs import expire_snapshots
from ebbtide.jobs.clean_log.segment_merge import merge_segments
from tests.fresh_seed import seeds
from tests.jobs.undo_run.twins import Twins
from tests.lake_sandbox import LakeSandbox
from tests.tables.planned import Jobs

pytestmark = pytest.mark.long


@pytest.mark.parametrize("seed", seeds(__file__, 1))
def test_an_undo_is_as_if_the_nights_had_not_been(
    seed: int,
    sandbox: LakeSandbox,
    jobs: Jobs,
    cluster: str,
    tmp_path: Path,
    kill_at: list[Step],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where jobs were killed in between, and where segments have been merged."""
    monkeypatch.setattr(expire_snapshots, "merge_segments", partial(merge_segments, at_least=2))
    twins = Twins(sandbox, jobs, cluster, tmp_path / "log", seed, kill_at)
    for _ in range(twins.random.randint(0, 1)):
        twins.night(*twins.both)
        twins.change()
    nights = [twins.night(twins.name)]
    for _ in range(twins.random.randint(0, 2)):
        twins.change()
        nights.append(twins.night(twins.name))
    if twins.random.random() < 0.5:
        twins.change()
    for run_id in nights:  # a later one is left where the ones before removed nothing
        if twins.still_stands(run_id):
            twins.undo(run_id)
    twins.assert_alike()
