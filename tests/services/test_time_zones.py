"""Leases where clocks and time zones differ (F12): the database's clock alone decides, and every time shown has its offset.

The session of the database itself is put into another zone by a trigger at its login, which is stronger than what the
product asks for when it connects. The process has a zone of its own (`TZ`), and its wall clock is ten minutes away.
"""

import asyncio
import os
import re
import time
from collections.abc import AsyncGenerator, Generator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import psycopg
import pytest
from psycopg import sql

from harness.postgres import DatabaseClock
from services.driver import Driver, wanted
from turnkeeper.kit.log import configure
from turnkeeper.services import conversations, hosts, reap, runs, stream
from turnkeeper.services.answers import Refused
from turnkeeper.services.renew import heartbeat
from turnkeeper.store.pool import open_database
from turnkeeper.store.signals import SignalBus
from turnkeeper.wire.public import Conversation, RunDetail
from turnkeeper.wire.worker import Heartbeat, HeartbeatAnswer

ZONES = ("Europe/Paris", "America/St_Johns", "Asia/Kathmandu")
# Half a minute before local time is set: back (an hour, or its name, comes twice) and forward (one is left out).
CHANGES = {
    "Paris, back": datetime(2027, 10, 31, 0, 59, 30, tzinfo=UTC),
    "Paris, forward": datetime(2027, 3, 28, 0, 59, 30, tzinfo=UTC),
    "St John's, back": datetime(2027, 11, 7, 4, 29, 30, tzinfo=UTC),
    "St John's, forward": datetime(2027, 3, 14, 5, 29, 30, tzinfo=UTC),
    "the end of a year": datetime(2027, 12, 31, 23, 59, 30, tzinfo=UTC),
    "a leap day": datetime(2028, 2, 28, 23, 59, 30, tzinfo=UTC),
}


@pytest.fixture(params=ZONES)
def zone(request: pytest.FixtureRequest, dsn: str) -> str:
    """Every session of the test's database is in this zone."""
    name: str = request.param
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            sql.SQL(
                "CREATE FUNCTION elsewhere() RETURNS event_trigger LANGUAGE plpgsql AS "
                "$$ BEGIN PERFORM set_config('TimeZone', {}, false); END $$"
            ).format(sql.Literal(name))
        )
        connection.execute("CREATE EVENT TRIGGER elsewhere ON login EXECUTE FUNCTION elsewhere()")
        connection.execute("ALTER EVENT TRIGGER elsewhere ENABLE ALWAYS")
    return name


@pytest.fixture(name="process_zone", params=["UTC", "America/St_Johns"])
def _process_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Generator[str]:
    """This process is in this zone."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
async def driver(zone: str, process_zone: str, dsn: str) -> AsyncGenerator[Driver]:
    """An installation whose process and database are in zones of their own."""
    bus = SignalBus(dsn)
    async with open_database(dsn, min_size=1, max_size=4) as database:
        await bus.start()
        try:
            yield await Driver.start(database, bus, dsn)
        finally:
            await bus.stop()


async def test_the_session_is_where_it_was_put(driver: Driver, zone: str) -> None:
    """What the other tests here rest on."""
    assert await driver.s.db.read("test", lambda r: r.fetch_value("SHOW TimeZone")) == zone
    assert time.tzname[0] == ("UTC" if os.environ["TZ"] == "UTC" else "NST")


def seconds(row: dict[str, Any], column: str) -> float:
    """A time as seconds: in an hour that comes twice Python calls no two times of different zones equal (PEP 495)."""
    moment: datetime = row[column]
    return moment.timestamp()


@pytest.mark.parametrize("change", CHANGES)
async def test_a_lease_across_a_change_of_local_time_has_its_length(
    driver: Driver, database_clock: DatabaseClock, change: str
) -> None:
    """Case: F12. Proves: L-11. Granted, renewed, refused and reaped to the second, whatever the local clock shows."""
    began = CHANGES[change]
    database_clock.stand_at(began)
    turn = await driver.up_to("claimed")
    assert seconds(await driver.attempt(turn), "lease_expires_at") == began.timestamp() + 120
    database_clock.stand_at(began + timedelta(seconds=100))
    answer = wanted(await heartbeat(driver.s, turn.worker, Heartbeat(lease_generation=turn.lease)), HeartbeatAnswer)
    ends = began + timedelta(seconds=220)
    assert answer.lease_expires_at.timestamp() == ends.timestamp()
    database_clock.stand_at(ends + timedelta(seconds=1.9))
    assert isinstance(await heartbeat(driver.s, turn.worker, Heartbeat(lease_generation=turn.lease)), Refused)
    assert await reap.reap(driver.s) == 0
    assert await reap.look_later(driver.s)
    assert await reap.seconds_to_wait(driver.s) == pytest.approx(0.1, abs=0.01)
    database_clock.stand_at(ends + timedelta(seconds=2))
    assert await reap.reap(driver.s) == 1
    assert seconds(await driver.attempt(turn), "ended_at") == ends.timestamp() + 2


@pytest.mark.parametrize("apart_s", [600, -600])
async def test_wall_clocks_ten_minutes_apart_change_nothing(
    driver: Driver, database_clock: DatabaseClock, apart_s: float
) -> None:
    """Case: F12. Proves: L-11. The database's clock is elsewhere; no process clock is asked."""
    database_clock.offset(apart_s)
    turn = await driver.up_to("prepared")
    row = await driver.attempt(turn)
    assert (row["lease_expires_at"] - row["claimed_at"]).total_seconds() == 120
    assert abs((row["claimed_at"] - datetime.now(UTC)).total_seconds() - apart_s) < 60
    database_clock.offset(apart_s + 119)
    assert isinstance(await heartbeat(driver.s, turn.worker, Heartbeat(lease_generation=turn.lease)), HeartbeatAnswer)
    database_clock.offset(apart_s + 119 + 121)
    assert await reap.reap(driver.s) == 0
    database_clock.offset(apart_s + 119 + 123)
    assert await reap.reap(driver.s) == 1


OFFSET = re.compile(r"(Z|[+-]\d\d:\d\d)$")
MOMENT = re.compile(r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d")


def moments_in(value: Any) -> list[str]:
    """Every text in a JSON value that is a time."""
    if isinstance(value, str):
        return [value] if MOMENT.match(value) else []
    if isinstance(value, dict):
        return moments_in(list(cast("dict[str, Any]", value).values()))
    return (
        [moment for item in cast("list[Any]", value) for moment in moments_in(item)] if isinstance(value, list) else []
    )


async def test_every_time_that_is_shown_carries_its_offset(driver: Driver) -> None:
    """Case: F12. Runs, attempts, conversations, events, hosts, receipts, specs."""
    thread = (await driver.conversation()).thread_id
    turn = await driver.whole_turn(thread)
    run = wanted(await runs.get_run(driver.s, driver.owner, turn.claim.job), RunDetail)
    page = wanted(
        await stream.conversation_events(driver.s, driver.owner, thread, after=0, limit=100), stream.EventPage
    )
    shown = [
        run,
        wanted(await conversations.get(driver.s, driver.owner, thread), Conversation),
        *page.events,
        *await hosts.list_servers(driver.s),
        turn.spec,
    ]
    found = [moment for one in shown if one is not None for moment in moments_in(one.model_dump(mode="json"))]
    assert len(found) > 10
    assert [moment for moment in found if not OFFSET.search(moment)] == []
    now = datetime.now(UTC)
    for moment in found[:8]:
        assert abs((datetime.fromisoformat(moment) - now).total_seconds()) < 200, moment  # a lease may be ahead


async def test_the_log_carries_its_offset_too(process_zone: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Case: F12. So that it can be held against the rows."""
    configure("control")
    from turnkeeper.kit.log import get_logger

    get_logger("x").info("event_seen")
    await asyncio.sleep(0)
    written = capsys.readouterr().err
    (moment,) = re.findall(r'"time": "([^"]+)"', written)
    assert OFFSET.search(moment)
    assert abs((datetime.fromisoformat(moment) - datetime.now(UTC)).total_seconds()) < 5
