"""Keys of each topic whose records had not all left the table at the last report."""

from datetime import UTC, datetime, timedelta

from ebbtide.iceberg.erasures import append_erasures
from ebbtide.lake.key_records import SearchedKey, erasures_of
from ebbtide.lake.own_tables import OpenErasures
from ebbtide.lake.reader import open_lake
from ebbtide.ledger.erasure_secrets import secret_of
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


def test_the_erasures_of_a_key_come_newest_first(lake: LakeSandbox) -> None:
    name = secret_of("log.a").name(b"k1")
    append(lake, LOGGED, 3, KeyRow(name, 0, found=2))
    append(lake, REPORTED, 3, KeyRow(name, 0, found=2, left=1), KeyRow("k2", 0))
    with open_lake() as opened:
        rows = erasures_of(opened, "log.a", KEY)
        assert erasures_of(opened, "log.b", KEY) == []
    assert [(row.status, row.found, row.left) for row in rows] == [
        (REPORTED, 2, 1),
        (LOGGED, 2, None),
    ]
