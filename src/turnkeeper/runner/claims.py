"""Asking for work and claiming it (step 1 of a turn, D-05).

`work` only ever answers *maybe*; `claim` answers at once. A claim whose answer was lost is repeated with the same claim id,
and gives the same attempt: a message is never stranded for a lease lifetime by a lost reply. The lease is counted from the
first send.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from turnkeeper.client.control import HostControl
from turnkeeper.client.http import CallError, ClientError, ConnectionFailed
from turnkeeper.kit.clock import Clock
from turnkeeper.kit.ids import jitter, new_id
from turnkeeper.kit.log import Logger
from turnkeeper.runner.calls import is_tried_again
from turnkeeper.runner.heartbeat import exception_name
from turnkeeper.runner.nursery import Nursery
from turnkeeper.runner.recording import Recording
from turnkeeper.runner.settings import HostSettings
from turnkeeper.wire.worker import Claim, ClaimAnswer, ClaimRequest

LAST_CLAIM_S: Final = 5.0
"""How long a draining host still asks what became of a claim whose answer was lost."""
_LOST_REPLY_PAUSES_S: Final = (0.1, 0.5, 1.0, 2.0)
_OUTAGE_PAUSES_S: Final = (0.5, 1.0, 2.0, 5.0)
_IN_VAIN_PAUSES_S: Final = (0.02, 0.1, 0.5, 1.0)
_REFUSED_PAUSE_S: Final = 5.0
_QUIET_S: Final = 0.2
"""A sign of work that was waited for this long is no sign that keeps coming."""


@dataclass(frozen=True)
class Claimed:
    """One attempt. `sent_at`: when its claim was first sent."""

    claim: Claim
    sent_at: float


class Claims:
    """The loop that claims. `rooms` says how many more trees there is room for; `on_claimed` must not block.

    `room_changed` is set by the host when a turn has ended.
    """

    def __init__(
        self,
        settings: HostSettings,
        control: HostControl,
        incarnation: str,
        nursery: Nursery,
        recording: Recording,
        clock: Clock,
        log: Logger,
        *,
        rooms: Callable[[], int],
        on_claimed: Callable[[Claimed], None],
    ) -> None:
        self.room_changed = asyncio.Event()
        self._settings = settings
        self._control = control
        self._incarnation = incarnation
        self._nursery = nursery
        self._recording = recording
        self._clock = clock
        self._log = log
        self._rooms = rooms
        self._on_claimed = on_claimed
        self._draining = asyncio.Event()
        self._failures = 0

    def drain(self) -> None:
        """Claim nothing more. A claim that is on its way is carried through, so that nothing is stranded."""
        self._draining.set()

    async def run(self) -> None:
        """Returns when draining, after the last claim was answered."""
        in_vain = 0
        while not self._draining.is_set():
            if not await self._or_draining(self._nursery.wait_works()):
                continue
            if not self._recording.works():
                await self._pause(self._recording.pause_s())
                continue
            asked_at = self._clock.monotonic()
            # Looked at again after the wait, which may have been long: nothing is claimed that cannot be carried out.
            if not await self._wait_for_work() or not self._recording.works():
                continue
            if self._clock.monotonic() - asked_at > _QUIET_S:
                in_vain = 0  # what was in vain before is over, and the next turn must not wait for it
            answer = await self._claim()
            if answer is None:
                await self._pause(_REFUSED_PAUSE_S)
            elif answer.claim is not None:
                in_vain = 0
            elif answer.more:
                # Ready runs exist, but none that was free or that there is room for here.
                await self._wait_room(self._settings.timing.claim_repeat_s * jitter(0.4, 0.9))
            else:
                await self._pause(_IN_VAIN_PAUSES_S[min(in_vain, len(_IN_VAIN_PAUSES_S) - 1)])
                in_vain += 1

    async def _wait_for_work(self) -> bool:
        """Wait for a sign of work."""
        asked = asyncio.ensure_future(self._control.work(self._incarnation, self._settings.timing.work_wait_s))
        try:
            if not await self._or_draining(asked):
                return False
            work = asked.result()
        except CallError as error:
            await self._note_outage("work", error)
            return False
        self._failures = 0
        return work.maybe

    async def _claim(self) -> ClaimAnswer | None:
        """The answer to one claim, however often it has to be asked for. None: refused, or given up while draining."""
        request = ClaimRequest(
            claim_id=new_id(),
            incarnation=self._incarnation,
            rooms=max(0, self._rooms()),
            lease_ttl_s=self._settings.lease_ttl_s,
        )
        sent_at, sent, tries = self._clock.monotonic(), False, 0
        while True:
            if not sent:
                sent_at = self._clock.monotonic()
            try:
                answer = await self._control.claim(request)
            except CallError as error:
                sent = sent or not (isinstance(error, ConnectionFailed) and not error.sent)
                if tries == 0:
                    self._log_failure("claim", error)
                given_up = self._draining.is_set() and (not sent or self._clock.monotonic() > sent_at + LAST_CLAIM_S)
                if given_up or not is_tried_again(error):
                    return None
                await self._clock.sleep(_LOST_REPLY_PAUSES_S[min(tries, len(_LOST_REPLY_PAUSES_S) - 1)])
                tries += 1
                continue
            if answer.claim is not None:
                self._on_claimed(Claimed(answer.claim, sent_at))
            return answer

    async def _wait_room(self, s: float) -> None:
        """Wait for a turn to end here, at most `s`."""
        self.room_changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(s):
                await self._or_draining(self.room_changed.wait())

    async def _pause(self, s: float) -> None:
        await self._or_draining(self._clock.sleep(s))

    async def _or_draining(self, waiting: Awaitable[object]) -> bool:
        """Wait for it unless the host begins to drain: then it is cancelled, and the answer is False."""
        task = asyncio.ensure_future(waiting)
        draining = asyncio.ensure_future(self._draining.wait())
        try:
            await asyncio.wait({task, draining}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
                return True
            return False
        finally:
            for one in (task, draining):
                one.cancel()
            await asyncio.wait({task, draining})

    async def _note_outage(self, operation: str, error: CallError) -> None:
        if self._failures == 0:
            self._log_failure(operation, error)
        pause_s = _OUTAGE_PAUSES_S[min(self._failures, len(_OUTAGE_PAUSES_S) - 1)]
        self._failures += 1
        await self._pause(pause_s * jitter(0.8, 1.2))

    def _log_failure(self, operation: str, error: CallError) -> None:
        status = error.status if isinstance(error, ClientError) else None
        self._log.warning(
            "host_control_failure", operation=operation, exception=exception_name(error), http_status=status
        )
