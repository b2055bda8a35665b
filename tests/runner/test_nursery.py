"""Spare children: kept, taken, retired (architecture section 5)."""

import asyncio
import signal
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest

import turnkeeper
from runner.driving import FAST
from runner.peers import Peers
from turnkeeper.domain.settings import Limits
from turnkeeper.kit.clock import ManualClock, system_clock
from turnkeeper.kit.log import get_logger
from turnkeeper.runner.launch import Child, start_child
from turnkeeper.runner.nursery import BACKOFF_STEPS_S, Nursery
from turnkeeper.runner.settings import ChildSettings, HostSettings


@pytest.fixture
def settings(peers: Peers, tmp_path: Path) -> HostSettings:
    """A host with one spare."""
    return HostSettings(
        name="host-1",
        token="t",
        control_url=peers.url,
        provisioner_url=peers.url,
        data=tmp_path,
        spares=1,
        timing=FAST,
        child_log=tmp_path / "child.log",
    )


class Running:
    """A nursery at work."""

    def __init__(self, settings: HostSettings) -> None:
        self.changes = 0
        self.nursery = Nursery(settings, system_clock, get_logger("test"), self._count)
        self.task = asyncio.create_task(self.nursery.run())
        self.taken: list[Child] = []

    def _count(self) -> None:
        self.changes += 1

    async def take(self) -> Child:
        """A spare, as soon as there is one."""
        await self.waiting()
        child = self.nursery.take()
        assert child is not None
        self.taken.append(child)
        return child

    async def waiting(self) -> Child:
        """The first that waits for a turn."""
        async with asyncio.timeout(30):
            while not self.nursery.spares:
                await system_clock.sleep(0.01)
        return self.nursery.spares[0]

    async def stop(self) -> None:
        """End it and what was taken from it."""
        self.task.cancel()
        await asyncio.wait({self.task})
        for child in self.taken:
            child.dismiss()
            await child.wait_exit()


@pytest.fixture
async def running(settings: HostSettings) -> AsyncGenerator[Running]:
    """One nursery."""
    one = Running(settings)
    yield one
    await one.stop()


async def test_a_spare_that_was_taken_is_replaced(running: Running) -> None:
    """A little later, so that it does not compete with the turn."""
    first, second = await running.take(), await running.take()
    assert first.process != second.process
    assert first.ready
    assert second.waiting_since - first.waiting_since > 0.25


async def test_one_that_is_being_started_is_given_out_too(running: Running) -> None:
    """A turn that finds nobody ready does not begin a start of its own beside one that is further on; and another follows."""
    await running.take()
    async with asyncio.timeout(30):
        while (starting := running.nursery.take()) is None:
            await system_clock.sleep(0.01)
    running.taken.append(starting)
    assert not starting.ready_was_said
    assert await starting.wait_ready(30)
    assert (await running.take()).process not in {child.process for child in running.taken[:-1]}
    assert running.nursery.launch_error is None
    assert running.changes == 0


async def test_spares_of_another_environment_are_retired(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a child would inherit by now is not what it has."""
    first = await running.take()
    waiting = await running.waiting()
    monkeypatch.setenv("TZ", "America/St_Johns")
    assert running.nursery.take() is None
    assert await waiting.wait_exit() == 0
    assert (await running.take()).fingerprint != first.fingerprint


async def test_spares_of_another_version_are_retired(
    running: Running, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Proves: H-06 (spares). The product was installed anew while they waited: what they have imported is not it."""
    waiting = await running.waiting()
    assert running.nursery.take() is waiting
    running.taken.append(waiting)
    next_one = await running.waiting()
    installed = tmp_path / "__init__.py"
    installed.write_text("# another version\n")
    monkeypatch.setattr(turnkeeper, "__file__", str(installed))
    assert running.nursery.take() is None
    assert await next_one.wait_exit() == 0


async def test_pauses_after_failed_starts_grow_and_differ(settings: HostSettings, tmp_path: Path) -> None:
    """Proves: H-06. Step by step to a bound; hosts that failed together do not try again together."""
    (tmp_path / "child.log").mkdir()  # no child can be created
    clock = ManualClock()
    pauses: list[list[float]] = []
    for _ in range(2):
        nursery = Nursery(settings, clock, get_logger("test"), lambda: None)
        task = asyncio.create_task(nursery.run())
        waited: list[float] = []
        for _ in range(8):
            async with asyncio.timeout(10):
                while clock.next_deadline() is None:
                    await system_clock.sleep(0.001)
            waited.append((clock.next_deadline() or 0) - clock.monotonic())
            await clock.advance_async(waited[-1])
        assert nursery.launch_error is not None
        assert "cannot be started" in nursery.launch_error
        task.cancel()
        await asyncio.wait({task})
        pauses.append(waited)
    for waited in pauses:
        for pause_s, step_s in zip(waited, (*BACKOFF_STEPS_S, BACKOFF_STEPS_S[-1], BACKOFF_STEPS_S[-1]), strict=True):
            assert 0.8 * step_s <= pause_s <= 1.2 * step_s
    assert pauses[0] != pauses[1]


async def test_old_spares_are_retired(settings: HostSettings) -> None:
    """By age; nothing is left of them."""
    running = Running(replace(settings, limits=Limits(spare_age_s=0.2)))
    old = await running.waiting()
    assert await old.wait_exit() == 0
    await running.stop()


async def test_a_spare_that_dies_is_not_given_out(running: Running) -> None:
    """And its death is no failure to launch."""
    await running.take()
    spare = await running.waiting()
    spare.kill()
    await spare.wait_exit()
    assert running.nursery.take() is None
    assert running.nursery.launch_error is None
    assert running.changes == 0


async def test_the_end_of_a_child_is_seen_that_was_started_as_others_were_dismissed(settings: HostSettings) -> None:
    """Spares that are retired together leave their descriptors' numbers to the next child, whose pidfd gets one of them.

    Proves: H-01, H-04.
    """
    old = [start_child(system_clock, settings.child_log) for _ in range(2)]
    for child in old:
        await child.greet(ChildSettings.of(settings))
        assert await child.wait_ready(30)
    for child in old:
        child.dismiss()
    young = start_child(system_clock, settings.child_log)
    async with asyncio.timeout(30):
        await asyncio.gather(*(child.wait_exit() for child in old))
        young.kill()
        assert await young.wait_exit() == -signal.SIGKILL
    young.dismiss()
