"""The dead-man's switch: an unfed lease ends the turn, a fed one does not, and no feed comes too late to count."""

import asyncio
from collections.abc import Sequence

from sandboxd.manager import Manager, Worker, patience, until
from turnkeeper.kit import procs
from turnkeeper.kit.clock import system_clock

LATE_MS = 1000


async def started(manager: Manager, prompt: str, cancel_lead_ms: int = 300) -> Worker:
    """A running turn whose lease is still long."""
    worker = manager.activation()
    (await worker.take(cancel_lead_ms=cancel_lead_ms)).ok()
    assert (await worker.session()).ok()["failure"] is None
    (await worker.prompt(prompt)).ok()
    return worker


async def feed(worker: Worker, lease_ttl_ms: int, mark_ms: int | None = None) -> int:
    """Feed a mark, by default of now; returns it."""
    mark = system_clock.boottime_ms() if mark_ms is None else mark_ms
    (await worker.call("POST", "/v1/feed", {"mark_ms": mark, "lease_ttl_ms": lease_ttl_ms})).ok()
    return mark


async def die_on_time(processes: Sequence[procs.ProcessId], end_ms: int) -> None:
    """Not before the end and within a second of it all of them are dead."""
    assert processes
    await until(lambda: not any(procs.is_alive(process) for process in processes))
    assert 0 <= system_clock.boottime_ms() - end_ms < patience(LATE_MS)


async def test_kills_at_mark_plus_lease(manager: Manager) -> None:
    """Proves: L-12. Not before the lease's end and within a second of it everything of the turn is dead."""
    worker = await started(manager, "/background sleep 1000\n/hang")
    await until(lambda: len(manager.below()) >= 3)
    before = manager.below()
    mark = await feed(worker, 1500)
    await die_on_time(before, mark + 1500)
    events = await worker.events()
    assert events[-1]["failure"]["code"] == "lease_feed_lost"
    late = {"mark_ms": system_clock.boottime_ms(), "lease_ttl_ms": 60000}
    (await worker.call("POST", "/v1/feed", late)).refused(409, "lease_feed_lost")
    (await worker.prompt("again")).refused(409, "lease_feed_lost")
    evidence = (await worker.call("POST", "/v1/stop")).ok()["evidence"]
    assert (evidence["prompt_written"], evidence["receipt"]) == (True, None)


async def test_the_mark_of_the_take_arms_it(manager: Manager) -> None:
    """Proves: L-12. Nothing has to be fed for it to fire, and it ends a preparation like a turn."""
    worker = manager.activation()
    mark = system_clock.boottime_ms()
    lease_ttl_ms = int(patience(1500))  # the command must have started before it ends
    (await worker.take(mark_ms=mark, lease_ttl_ms=lease_ttl_ms, cancel_lead_ms=100)).ok()
    answer = (await worker.setup(["sh", "-c", "setsid sleep 1000 & sleep 1000"], timeout_s=60)).ok()
    assert system_clock.boottime_ms() >= mark + lease_ttl_ms
    assert answer["ok"] is False
    await until(lambda: manager.below() == [])
    (await worker.session()).refused(409, "lease_feed_lost")


async def test_ends_an_opening(manager: Manager) -> None:
    """Proves: L-12. A session that is only being opened is ended too, and the open says why."""
    worker = manager.activation()
    (await worker.take()).ok()
    opening = asyncio.create_task(worker.session(env={"SCRIPTED_AGENT_FAULT": "new:hang"}))
    await until(lambda: len(manager.below()) >= 2)
    await feed(worker, 500)
    assert (await opening).ok()["failure"]["code"] == "lease_feed_lost"
    await until(lambda: manager.below() == [])


async def test_cancels_before_it_kills(manager: Manager) -> None:
    """Proves: L-12. The agent hears of it early enough to reach a boundary, and the end has its own code."""
    worker = await started(manager, "/sleep 100", cancel_lead_ms=10_000)
    await feed(worker, 11_000)
    receipt = (await worker.events())[-1]["receipt"]
    assert (receipt["outcome"], receipt["error_code"]) == ("cancelled", "lease_feed_lost")
    assert manager.below() != []  # it acknowledged, so it stays


async def test_feeding_keeps_it_alive(manager: Manager) -> None:
    """Proves: L-12, L-02. A turn without any output lives as long as it is fed."""
    worker = await started(manager, "/sleep 6\n/say done")
    await feed(worker, 4000)

    async def keep_feeding() -> None:
        while True:
            await asyncio.sleep(0.5)
            await feed(worker, 4000)

    feeding = asyncio.create_task(keep_feeding())
    events = await worker.events()
    feeding.cancel()
    assert events[-1]["receipt"]["outcome"] == "completed"


async def test_older_mark_never_extends(manager: Manager) -> None:
    """Proves: L-12. A feed that was delayed, with whatever lifetime, changes nothing; a mark from the future is refused."""
    worker = await started(manager, "/hang")
    before = manager.below()
    mark = await feed(worker, 2000)
    for late in (mark - 1000, mark):
        await feed(worker, 600_000, late)
    future = {"mark_ms": system_clock.boottime_ms() + 60_000, "lease_ttl_ms": 600_000}
    (await worker.call("POST", "/v1/feed", future)).refused(422, "bad_mark")
    await die_on_time(before, mark + 2000)
    (await worker.next().take(mark_ms=system_clock.boottime_ms() + 60_000)).refused(422, "bad_mark")


async def test_settled_agent_is_not_killed(manager: Manager) -> None:
    """Proves: L-12, R-01. After the settlement the switch is off; a switch that fires before a prompt spares the session."""
    first = await started(manager, "/say one")
    receipt = (await first.events())[-1]["receipt"]
    await feed(first, 1)  # accepted, and without effect
    second = first.next()
    (await second.take()).ok()
    (await second.session(recorded=first.recorded(receipt))).ok()
    await feed(second, 300)
    events = await second.events()  # ends when the switch fires
    assert events[-1]["failure"]["code"] == "lease_feed_lost"
    third = second.next()
    (await third.take()).ok()
    assert (await third.session(recorded=first.recorded(receipt))).ok()["mode"] == "continued"
