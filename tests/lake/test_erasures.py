"""Keys of each topic whose records had not all left the table at the last report."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ebbtide.iceberg.erasures import append_erasures
from ebbtide.lake.key_records import SearchedKey, erasures_of
from ebbtide.lake.own_tables import OpenErasures
from ebbtide.lake.reader import open_lake
from ebbtide.ledger.erasure_secrets import SECRETS, secret_of
from ebbtide.ledger.own_tables import LOGGED, REPORTED, KeyRow
from ebbtide.settings.names import TopicName
from ebbtide.specs.erase_request import Erasure
from tests.lake_sandbox import LakeSandbox

NOW = datetime.now(UTC).replace(microsecond=0)
NOW_MS = int(NOW.timestamp() * 1000)


def append(lake: LakeSandbox, status: str, days_ago: int, *rows: KeyRow) -> None:
    at_ms = NOW_MS - days_ago * 86_400_000
    erasure = Erasure(run_id="r", now_ms=at_ms, requested_by="ann", reason="asked")
    append_erasures(lake.session, TopicName("log", "a"), erasure, status, rows)


KEY = SearchedKey.parse("k1", "utf-8")


def open_keys(erasures: OpenErasures) -> dict[str, int]:
    with open_lake() as lake:
        return dict(erasures.read_on(lake, NOW - timedelta(days=35)))


def test_a_key_is_open_until_its_newest_row_says_that_all_has_left(lake: LakeSandbox) -> None:
    erasures = OpenErasures()
    assert open_keys(erasures) == {}
    append(lake, LOGGED, 3, KeyRow("k1", 0), KeyRow("k1", 1), KeyRow("k2", 0), KeyRow("nowhere"))
    assert open_keys(erasures) == {"log.a": 2}
    append(lake, REPORTED, 3, KeyRow("k1", 0, out_of_table_at=NOW_MS), KeyRow("k1", 1))
    append(lake, REPORTED, 3, KeyRow("k2", 0, out_of_table_at=NOW_MS))
    assert open_keys(erasures) == {"log.a": 1}
    append(lake, REPORTED, 1, KeyRow("k1", 1, out_of_table_at=NOW_MS))
    assert open_keys(erasures) == {}


def test_the_erasures_of_a_key_come_newest_first(
    lake: LakeSandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = secret_of("log.a").name(b"k1")
    append(lake, LOGGED, 3, KeyRow(name, 0, found=2))
    append(lake, REPORTED, 3, KeyRow(name, 0, found=2, left=1), KeyRow("k2", 0))
    with open_lake() as opened:
        rows, problem = erasures_of(opened, "log.a", KEY)
        assert not problem
        assert erasures_of(opened, "log.b", KEY) == ([], "")
        by_hash = erasures_of(opened, "log.a", SearchedKey(KEY.sha256, None))
        monkeypatch.setenv(SECRETS, str(tmp_path))
        without_secret = erasures_of(opened, "log.a", KEY)
        (tmp_path / "log.a").mkdir()
        unreadable = erasures_of(opened, "log.a", KEY)
    assert by_hash == (
        [],
        "Erasures cannot be found by a SHA-256. Type the key to see its erasures.",
    )
    not_shown = "Erasures of this key are not shown: "
    assert without_secret == ([], f"{not_shown}there is no secret of log.a here.")
    assert unreadable.problem.startswith(f"{not_shown}expected the secret of log.a in a file")
    assert [(row.status, row.found, row.left) for row in rows] == [
        (REPORTED, 2, 1),
        (LOGGED, 2, None),
    ]
