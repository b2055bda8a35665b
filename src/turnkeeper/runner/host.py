"""The host: claims runs, starts one child per turn, and says how it is (protocol.md sections 2 to 4; H-01 to H-06).

Everything happens in one event loop. A turn is one task: hand over, read the descriptor to the end, then release, or wait
for the child's end. The host never acts for a child that has accepted: it only says which ones it found gone.

SIGTERM or SIGINT: claim nothing more, wait for the children for as long as a drain may last, then exit; a child that
still runs keeps its lease and its turn, and the next start of the host adopts it. A second signal exits at once.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Final, Literal

import turnkeeper
from turnkeeper.client.control import HostControl
from turnkeeper.client.http import CallError, ClientError, Timeouts
from turnkeeper.domain.lease import reap_at
from turnkeeper.kit.clock import Clock, system_clock
from turnkeeper.kit.ids import new_id
from turnkeeper.kit.log import get_logger
from turnkeeper.kit.procs import ProcessId, open_pidfd
from turnkeeper.runner.calls import is_tried_again
from turnkeeper.runner.claims import Claimed, Claims
from turnkeeper.runner.handover import HandedTurn
from turnkeeper.runner.heartbeat import exception_name
from turnkeeper.runner.launch import Accepted, Child, NotTaken, Unproven
from turnkeeper.runner.nursery import Nursery
from turnkeeper.runner.recording import Recording
from turnkeeper.runner.records import ChildRecord, ChildRecords
from turnkeeper.runner.settings import HostSettings
from turnkeeper.runner.worker import EXIT_DONE
from turnkeeper.wire.host import GoneChild, HostHeartbeat
from turnkeeper.wire.worker import Claim, Release

_RELEASE_PAUSES_S: Final = (0.2, 1.0, 2.0, 5.0, 10.0)
_BEAT_TIMEOUT_S: Final = 10.0
_GOODBYE_S: Final = 2.0
_GONE_MAX: Final = 1000
"""So many gone children are reported in one heartbeat; the rest with the next."""

ReleaseWhy = Literal["not_created", "not_delivered", "not_accepted"]


@dataclass
class LiveTurn:
    """An attempt that counts as load. `expires_at`: when a turn that was never accepted stops counting."""

    root_run_id: str
    expires_at: float | None = None


class Host:
    """One incarnation of a host. `run` is its whole life."""

    def __init__(self, settings: HostSettings, clock: Clock = system_clock) -> None:
        self.incarnation = new_id()
        self._settings = settings
        self._clock = clock
        self._log = get_logger("runner.host").bind(host=settings.name)
        self._records = ChildRecords(settings.state)
        timing = settings.timing
        self._control = HostControl(
            settings.control_url,
            settings.token,
            timeouts=Timeouts(call=timing.control_timeout_s, read=timing.control_timeout_s),
        )
        self._live: dict[str, LiveTurn] = {}
        self._gone: dict[str, GoneChild] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()  # something that the control plane should hear at once
        self._changed = asyncio.Event()  # a turn has ended
        self._heard = asyncio.Event()
        self._unheard = False  # the last heartbeat was not answered
        self._drain = asyncio.Event()
        self._leave = asyncio.Event()
        self._nursery = Nursery(settings, clock, self._log, self._news.set)
        self._recording = Recording(self._records, self._log, self._news.set)
        self._claims = Claims(
            settings,
            self._control,
            self.incarnation,
            self._nursery,
            self._recording,
            clock,
            self._log,
            rooms=self.rooms,
            on_claimed=self._on_claimed,
        )

    def rooms(self) -> int:
        """How many more trees there is room for: the capacity less the distinct roots of live attempts."""
        now = self._clock.monotonic()
        roots = {turn.root_run_id for turn in self._live.values() if turn.expires_at is None or now < turn.expires_at}
        return self._settings.capacity - len(roots)

    def drain(self) -> None:
        """First call: claim nothing more, and leave when the children have ended. Second: leave at once."""
        if self._drain.is_set():
            self._leave.set()
            return
        self._log.info("host_draining", live=len(self._live))
        self._drain.set()
        self._claims.drain()
        self._news.set()

    async def run(self) -> None:
        """Raises `SettingRefused` where the state directory cannot be used."""
        lock = self._records.open()
        try:
            self._log.info("host_started", incarnation=self.incarnation, capacity=self._settings.capacity)
            self._adopt()
            async with self._control:
                await self._serve()
        finally:
            lock.release()
        self._log.info("host_ended", live=len(self._live))

    async def _serve(self) -> None:
        nursery = asyncio.create_task(self._nursery.run())
        beats = asyncio.create_task(self._beat())
        claims = asyncio.create_task(self._claim())
        try:
            await self._until_drained(claims, nursery, beats)
            await self._say_goodbye()
        finally:
            for task in (nursery, beats, claims, *self._tasks):
                task.cancel()
            await asyncio.wait({nursery, beats, claims, *self._tasks})

    async def _claim(self) -> None:
        """Claim once this incarnation has been heard: the control plane counts its load by it."""
        waiting = [asyncio.ensure_future(event.wait()) for event in (self._heard, self._drain)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
        await self._claims.run()

    async def _until_drained(
        self, claims: "asyncio.Task[None]", nursery: "asyncio.Task[None]", beats: "asyncio.Task[None]"
    ) -> None:
        leave = asyncio.create_task(self._leave.wait())
        try:
            await asyncio.wait({claims, nursery, beats, leave}, return_when=asyncio.FIRST_COMPLETED)
            for task in (nursery, beats, claims):
                if task.done():
                    task.result()  # a defect ends the host; its children go on
            nursery.cancel()
            await self._wait_for_turns(leave)
        finally:
            leave.cancel()

    async def _wait_for_turns(self, leave: "asyncio.Task[bool]") -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.timing.drain_s):
                while (self._live or self._tasks) and not leave.done():
                    self._changed.clear()
                    changed = asyncio.ensure_future(self._changed.wait())
                    try:
                        await asyncio.wait({changed, leave}, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        changed.cancel()

    # ------------------------------------------------------------------------------------------------ one turn

    def _on_claimed(self, claimed: Claimed) -> None:
        claim = claimed.claim
        if claim.attempt in self._live:  # the same attempt again, as D-05 has it; it is on its way already
            return
        timing = self._settings.timing
        expires_at = reap_at(claimed.sent_at + claim.lease_ttl_s, timing)
        self._live[claim.attempt] = LiveTurn(claim.root_run_id, expires_at)
        self._start(self._carry(claimed))

    def _start(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._changed.set()
        self._claims.room_changed.set()
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._log.error("host_turn_broke", exception=type(failure).__name__)

    async def _carry(self, claimed: Claimed) -> None:
        claim = claimed.claim
        try:
            if self._drain.is_set():
                await self._release(claim, "not_created", "the host is draining")
                return
            spare = self._nursery.take()
            try:
                child = spare or await self._nursery.start_now()
            except OSError as error:
                await self._release(claim, "not_created", type(error).__name__)
                return
            try:
                self._recording.write(ChildRecord.of(child.process, claim, self.incarnation))
            except Exception as error:  # a full disk, or a defect: the child was told nothing, which is proof enough
                child.dismiss()
                await self._release(claim, "not_delivered", type(error).__name__)
                return
            await self._hand_over(claimed, child)
        finally:
            self._live.pop(claim.attempt, None)

    async def _hand_over(self, claimed: Claimed, child: Child) -> None:
        claim = claimed.claim
        turn = HandedTurn(claim=claim, claim_sent_at=claimed.sent_at, incarnation=self.incarnation)
        outcome = await child.hand_over(turn)
        match outcome:
            case Accepted():
                self._live[claim.attempt].expires_at = None
                status = await child.wait_exit()
                self._note_end(claim, status)
            case NotTaken(delivered, detail):
                self._records.remove(claim.attempt)
                await self._release(claim, "not_accepted" if delivered else "not_delivered", detail)
                if not child.ready_was_said and child.exit_status is not None:
                    self._nursery.note_failed_start(child.exit_status)
            case Unproven():
                self._log.warning("handover_unproven", run=claim.job, attempt=claim.attempt)
                self._note_end(claim, await child.wait_exit())
        child.dismiss()

    def _note_end(self, claim: Claim, status: int) -> None:
        self._log.info("child_ended", run=claim.job, attempt=claim.attempt, exit_status=status)
        if status == EXIT_DONE:
            self._records.remove(claim.attempt)
        else:
            gone = GoneChild(job=claim.job, attempt=claim.attempt, lease_generation=claim.lease_generation)
            self._report_gone(gone)

    async def _release(self, claim: Claim, why: ReleaseWhy, detail: str) -> None:
        """Give the attempt back with its own token. A refusal is an answer: the control plane knows better (H-05)."""
        self._log.warning("claim_released", run=claim.job, attempt=claim.attempt, why=why, detail=detail)
        release = Release(lease_generation=claim.lease_generation, why=why, detail=detail[:500])
        for pause_s in (*_RELEASE_PAUSES_S, None):
            try:
                await self._control.release(claim.job, claim.worker_token, release)
                return
            except CallError as error:
                self._log_failure("release", error, run=claim.job, attempt=claim.attempt)
                if pause_s is None or not is_tried_again(error):
                    return
            await self._clock.sleep(pause_s)

    # ------------------------------------------------------------------------------------------------ earlier children

    def _adopt(self) -> None:
        """Take over what an earlier incarnation left: what lives counts as load, what is gone is reported."""
        for record in self._records.read_all():
            if record.alive:
                self._log.info("child_adopted", run=record.job, attempt=record.attempt, pid=record.pid)
                self._live[record.attempt] = LiveTurn(record.root_run_id)
                self._start(self._watch_adopted(record))
            else:
                self._report_gone(record.gone)

    async def _watch_adopted(self, record: ChildRecord) -> None:
        await wait_gone(record.process)
        self._live.pop(record.attempt, None)
        self._report_gone(record.gone)  # how it ended, only its parent would have known

    def _report_gone(self, gone: GoneChild) -> None:
        self._gone[gone.attempt] = gone
        self._news.set()

    # ------------------------------------------------------------------------------------------------ heartbeat

    async def _beat(self) -> None:
        interval_s: float = self._settings.timing.host_heartbeat_s
        while True:
            self._news.clear()
            answered_s = await self._beat_once(_BEAT_TIMEOUT_S)
            interval_s = interval_s if answered_s is None else answered_s
            pause_s = interval_s if answered_s is not None else min(interval_s, 2.0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    if answered_s is None:
                        await self._clock.sleep(pause_s)
                    await self._news.wait()

    async def _beat_once(self, timeout_s: float) -> float | None:
        """One heartbeat. Returns when the next is wanted, in seconds; None: it was not answered."""
        reported = tuple(self._gone.values())[:_GONE_MAX]
        error = self._nursery.launch_error or self._recording.error
        beat = HostHeartbeat(
            incarnation=self.incarnation,
            version=turnkeeper.__version__,
            capacity=self._settings.capacity,
            labels=self._settings.labels,
            provisioner=self._settings.provisioner,
            state="draining" if self._drain.is_set() else "ready" if error is None else "backing_off",
            launch_error=None if error is None else error[:500],
            gone=reported,
        )
        try:
            answer = await self._control.heartbeat(self._settings.name, beat, timeout_s)
        except CallError as failure:
            if not self._unheard:  # once per outage
                self._log_failure("host_heartbeat", failure)
            self._unheard = True
            return None
        if self._unheard:
            self._log.info("host_heartbeat_recovered")
        self._unheard = False
        self._heard.set()
        for gone in reported:
            self._gone.pop(gone.attempt, None)
            self._records.remove(gone.attempt)
        if answer.superseded and not self._drain.is_set():
            self._log.error("host_superseded", incarnation=self.incarnation)
            self.drain()
        return float(answer.interval_s)

    async def _say_goodbye(self) -> None:
        if self._gone and not self._leave.is_set():
            await self._beat_once(_GOODBYE_S)

    def _log_failure(self, operation: str, error: CallError, **ids: str) -> None:
        status = error.status if isinstance(error, ClientError) else None
        self._log.warning(
            "host_control_failure", operation=operation, exception=exception_name(error), http_status=status, **ids
        )


async def wait_gone(process: ProcessId) -> None:
    """Wait until exactly this process is gone; it need not be a child of ours."""
    pidfd = open_pidfd(process)
    if pidfd is None:
        return
    loop = asyncio.get_running_loop()
    gone: asyncio.Future[None] = loop.create_future()

    def see() -> None:
        loop.remove_reader(pidfd)
        if not gone.done():
            gone.set_result(None)

    loop.add_reader(pidfd, see)
    try:
        await gone
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


def run_host(settings: HostSettings) -> int:
    """The whole life of a host process; returns its exit status. Raises `SettingRefused`."""

    async def serve() -> None:
        host = Host(settings)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, host.drain)
        await host.run()

    asyncio.run(serve())
    return 0
