"""The dead-man's switch: an unfed lease ends the turn, a fed one does not, and no feed comes too late to count."""

import asyncio

from sandboxd.manager import Manager, Worker, until
from turnkeeper.kit import procs
from turnkeeper.kit.clock import system_clock


async def started(manager: Manager, prompt: str, **take: int) -> Worker:
    """A running turn with a short lease."""
    worker = manager.activation()
    (await worker.take(**take)).ok()
    assert (await worker.session()).ok()["failure"] is None
    (await worker.prompt(prompt)).ok()
    return worker


async def test_kills_at_mark_plus_lease(manager: Manager) -> None:
    """Proves: L-12. Not before the lease's end and within a second of it everything of the turn is dead."""
    mark = system_clock.boottime_ms()
    worker = await started(
        manager, "/background sleep 1000\n/hang", mark_ms=mark, lease_ttl_ms=3000, cancel_lead_ms=500
    )
    before = manager.below()
    await until(lambda: not any(procs.is_alive(process) for process in before))
    assert 0 <= system_clock.boottime_ms() - (mark + 3000) < 1000
    events = await worker.events()
    assert events[-1]["failure"]["code"] == "lease_feed_lost"
    feed = {"mark_ms": system_clock.boottime_ms(), "lease_ttl_ms": 60000}
    (await worker.call("POST", "/v1/feed", feed)).refused(409, "lease_feed_lost")
    (await worker.prompt("again")).refused(409, "stopped")
    evidence = (await worker.call("POST", "/v1/stop")).ok()["evidence"]
    assert (evidence["prompt_written"], evidence["receipt"]) == (True, None)


async def test_cancels_before_it_kills(manager: Manager) -> None:
    """Proves: L-12. The agent hears of it early enough to reach a boundary, and the end has its own code."""
    worker = await started(manager, "/sleep 100", lease_ttl_ms=6000, cancel_lead_ms=4000)
    receipt = (await worker.events())[-1]["receipt"]
    assert (receipt["outcome"], receipt["error_code"]) == ("cancelled", "lease_feed_lost")
    assert manager.below() != []  # it acknowledged, so it stays


async def test_feeding_keeps_it_alive(manager: Manager) -> None:
    """Proves: L-12, L-02. A turn without any output lives as long as it is fed."""
    worker = await started(manager, "/sleep 3\n/say done", lease_ttl_ms=2000, cancel_lead_ms=300)

    async def feed() -> None:
        while True:
            mark = {"mark_ms": system_clock.boottime_ms(), "lease_ttl_ms": 2000}
            (await worker.call("POST", "/v1/feed", mark)).ok()
            await asyncio.sleep(0.3)

    feeding = asyncio.create_task(feed())
    events = await worker.events()
    feeding.cancel()
    assert events[-1]["receipt"]["outcome"] == "completed"


async def test_older_mark_never_extends(manager: Manager) -> None:
    """Proves: L-12. A feed that was delayed, with whatever lifetime, changes nothing; a mark from the future is refused."""
    mark = system_clock.boottime_ms()
    worker = await started(manager, "/hang", mark_ms=mark, lease_ttl_ms=3000, cancel_lead_ms=500)
    before = manager.below()
    for late in (mark - 1000, mark):
        (await worker.call("POST", "/v1/feed", {"mark_ms": late, "lease_ttl_ms": 600_000})).ok()
    future = {"mark_ms": system_clock.boottime_ms() + 60_000, "lease_ttl_ms": 600_000}
    (await worker.call("POST", "/v1/feed", future)).refused(422, "bad_mark")
    await until(lambda: not any(procs.is_alive(process) for process in before))
    assert 0 <= system_clock.boottime_ms() - (mark + 3000) < 1000
    (await worker.next().take(mark_ms=system_clock.boottime_ms() + 60_000)).refused(422, "bad_mark")


async def test_setup_and_opening_die_too(manager: Manager) -> None:
    """Proves: L-12. A lease that is lost while the turn is prepared ends the preparation."""
    worker = manager.activation()
    (await worker.take(lease_ttl_ms=1500, cancel_lead_ms=100)).ok()
    answer = (await worker.setup(["sh", "-c", "setsid sleep 1000 & sleep 1000"])).ok()
    assert answer["ok"] is False
    await until(lambda: manager.below() == [])
    second = worker.next()
    (await second.take(lease_ttl_ms=1500, cancel_lead_ms=100)).ok()
    failure = (await second.session(env={"SCRIPTED_AGENT_FAULT": "new:hang"})).ok()["failure"]
    assert failure["code"] == "lease_feed_lost"
    await until(lambda: manager.below() == [])


async def test_settled_agent_is_not_killed(manager: Manager) -> None:
    """Proves: L-12, R-01. After the settlement the switch is off; a switch that fires before a prompt spares the session."""
    first = manager.activation()
    (await first.take(lease_ttl_ms=2500, cancel_lead_ms=100)).ok()
    (await first.session()).ok()
    (await first.prompt("one")).ok()
    receipt = (await first.events())[-1]["receipt"]
    second = first.next()
    (await second.take(lease_ttl_ms=1000, cancel_lead_ms=100)).ok()
    (await second.session(recorded=first.recorded(receipt))).ok()
    events = await second.events()  # ends when the switch fires
    assert events[-1]["failure"]["code"] == "lease_feed_lost"
    await asyncio.sleep(1.5)  # past the first switch's moment as well
    third = second.next()
    (await third.take()).ok()
    assert (await third.session(recorded=first.recorded(receipt))).ok()["mode"] == "continued"
