"""Spare children: started ahead, so that a turn finds one that has imported everything.

A launch that fails makes the host stop claiming and lengthens the pause to the next try step by step (H-06). Spares are
retired when they are old, and when the installed product or the environment for children has changed.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from turnkeeper.kit.clock import Clock
from turnkeeper.kit.ids import jitter
from turnkeeper.kit.log import Logger
from turnkeeper.runner.launch import Child, fingerprint, start_child
from turnkeeper.runner.settings import ChildSettings, HostSettings

READY_TIMEOUT_S: Final = 30.0
REFILL_DELAY_S: Final = 0.25
"""A new spare is started a little after one was taken: Python's start would compete with the turn for the processor."""
LOOK_S: Final = 10.0
END_S: Final = 2.0
BACKOFF_STEPS_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_JITTER: Final = (0.8, 1.2)


def backoff_s(failures: int) -> float:
    """How long a host waits after so many failures in a row (at least one), step by step longer (H-06)."""
    return BACKOFF_STEPS_S[min(max(failures, 1), len(BACKOFF_STEPS_S)) - 1] * jitter(*_JITTER)


class Nursery:
    """`on_change` is called when launching begins to fail or works again."""

    def __init__(self, settings: HostSettings, clock: Clock, log: Logger, on_change: Callable[[], None]) -> None:
        self._settings = settings
        self._told = ChildSettings.of(settings)
        self._clock = clock
        self._log = log
        self._on_change = on_change
        self._spares: list[Child] = []
        self._dismissed: list[Child] = []  # and not yet seen to end
        self._failures = 0
        self._launch_error: str | None = None
        self._taken = asyncio.Event()
        self._works = asyncio.Event()
        self._works.set()

    @property
    def launch_error(self) -> str | None:
        """Why children cannot be started at the moment; None: they can."""
        return self._launch_error

    @property
    def spares(self) -> tuple[Child, ...]:
        """Those that wait for a turn."""
        return tuple(child for child in self._spares if child.ready)

    async def wait_works(self) -> None:
        """Wait until children can be started."""
        await self._works.wait()

    def take(self) -> Child | None:
        """A spare that is ready, else the one that is being started: it is further on than one that begins now."""
        self._drop_unfit()
        child = next((child for child in self._spares if child.ready), self._spares[0] if self._spares else None)
        if child is not None:
            self._spares.remove(child)
            self._taken.set()
        return child

    async def start_now(self) -> Child:
        """A child that is not ready yet, for a turn that found no spare. `OSError` where none can be started."""
        try:
            child = start_child(self._clock, self._settings.child_log)
        except OSError as error:
            self._note_failure(f"a child cannot be started: {error.strerror or error}")
            raise
        await child.greet(self._told)
        return child

    def note_failed_start(self, status: int | None) -> None:
        """A child that was started for a turn ended before it said anything."""
        self._note_failure(f"a child ended with {status} before it was ready")

    async def run(self) -> None:
        """Keep the spares up until it is cancelled; then end them."""
        try:
            while True:
                self._taken.clear()
                self._drop_unfit()
                # While launching fails one is tried also where no spares are wanted: its success says that it works.
                wanted = max(self._settings.spares, 1 if self._failures else 0)
                if len(self._spares) >= wanted:
                    await self._wait_taken()
                elif not await self._add_spare():
                    await self._clock.sleep(backoff_s(self._failures))
        finally:
            for child in list(self._spares):
                self._dismiss(child)
            await self._see_end()

    async def _see_end(self) -> None:
        """Wait for whoever was dismissed; one that does not end by itself is killed."""
        ending = {asyncio.ensure_future(child.wait_exit()) for child in self._dismissed}
        if ending:
            await asyncio.wait(ending, timeout=END_S)
        for child in self._dismissed:
            child.kill()
        if ending:
            await asyncio.wait(ending)

    async def _wait_taken(self) -> None:
        look_s = min(LOOK_S, self._settings.limits.spare_age_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(look_s):
                await self._taken.wait()
            await self._clock.sleep(REFILL_DELAY_S)

    async def _add_spare(self) -> bool:
        try:
            child = await self.start_now()
        except OSError:
            return False
        self._spares.append(child)
        ready = await self._ready_or_not_ours(child)
        if ready is None:
            return True
        if ready:
            child.waiting_since = self._clock.monotonic()
            self._log.debug("spare_ready", pid=child.process.pid)
            self._note_success()
            return True
        status = child.exit_status
        why = "was not ready in time" if status is None else f"ended with {status} before it was ready"
        self._dismiss(child)
        child.kill()
        self._note_failure(f"a child {why}")
        return False

    async def _ready_or_not_ours(self, child: Child) -> bool | None:
        """Whether it became ready. None: it was taken or retired before."""
        ready = asyncio.ensure_future(child.wait_ready(READY_TIMEOUT_S))
        try:
            while not ready.done() and child in self._spares:
                self._taken.clear()
                taken = asyncio.ensure_future(self._taken.wait())
                await asyncio.wait({ready, taken}, return_when=asyncio.FIRST_COMPLETED)
                taken.cancel()
        finally:
            ready.cancel()
        if child in self._spares:
            return ready.result()
        await self._clock.sleep(REFILL_DELAY_S)
        return None

    def _drop_unfit(self) -> None:
        now, current = self._clock.monotonic(), fingerprint()
        for child in list(self._spares):
            old = now - child.waiting_since >= self._settings.limits.spare_age_s
            if child.exit_status is not None or old or child.fingerprint != current:
                self._dismiss(child)

    def _dismiss(self, child: Child) -> None:
        if child in self._spares:
            self._spares.remove(child)
        child.dismiss()
        self._taken.set()  # another is wanted
        self._dismissed = [one for one in (*self._dismissed, child) if one.exit_status is None]

    def _note_failure(self, why: str) -> None:
        self._failures += 1
        self._launch_error = why
        self._works.clear()
        self._log.error("child_launch_failed", why=why, failures=self._failures)
        self._on_change()

    def _note_success(self) -> None:
        if self._failures:
            self._log.info("child_launch_recovered", failures=self._failures)
            self._failures, self._launch_error = 0, None
            self._works.set()
            self._on_change()
