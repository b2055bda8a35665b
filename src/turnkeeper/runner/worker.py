"""One worker's attempt: its lease, its flags, its clients and the threads beside the main one.

What may interrupt what:

* a lost lease cuts every call, to whomever, and nothing is written to the control plane after it;
* a time-out or a cancel cuts only calls to the sandbox whose effect `stop` undoes, never a call to the control plane:
  an admission that was asked for and not answered would cost the conversation (R-02).
"""

import dataclasses
import os
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from turnkeeper.client.control import JobControl
from turnkeeper.client.http import Timeouts
from turnkeeper.client.provisioner import Manager, Provisioner
from turnkeeper.domain.settings import Timing
from turnkeeper.kit.clock import Clock
from turnkeeper.kit.log import Logger
from turnkeeper.runner.calls import ControlCalls
from turnkeeper.runner.failure import Halted, LeaseLost
from turnkeeper.runner.feed import MarkFeed
from turnkeeper.runner.flags import ANY_FLAG, LOST_ONLY, Flag, Flags
from turnkeeper.runner.handover import HandedTurn
from turnkeeper.runner.heartbeat import Heartbeats, Renewed
from turnkeeper.runner.lease import Lease
from turnkeeper.runner.settings import ChildSettings
from turnkeeper.runner.signals import SignalWait
from turnkeeper.runner.watchdog import Watchdog
from turnkeeper.wire.provisioner import Sandbox
from turnkeeper.wire.worker import ActivateAnswer, ExecutionSpec

T = TypeVar("T")

LOST_EXIT_S: Final = 20.0
"""A worker that has lost its lease and still runs this much later is ended from within; the dead-man's switch has
long since ended its agent."""


EXIT_DONE: Final = 0
"""The run was ended by its own word."""
EXIT_NO_WORD: Final = 3
"""The turn is over and the control plane may not know: the host reports the child as gone."""
EXIT_NOT_TAKEN: Final = 4
"""The turn was not accepted."""


def exit_hard() -> None:
    """End this process at once."""
    os._exit(EXIT_NO_WORD)


class Worker:
    """Built once per turn, in the child's main thread."""

    def __init__(
        self,
        handed: HandedTurn,
        settings: ChildSettings,
        clock: Clock,
        log: Logger,
        *,
        end_process: Callable[[], None] = exit_hard,
    ) -> None:
        """`end_process` is called by the watchdog when the worker has not ended by itself long after its lease."""
        self._end_process = end_process
        self._clients: list[JobControl | Provisioner | Manager] = []
        self._settings = settings
        self.claim = handed.claim
        self.clock = clock
        self.log = log
        self.claim_sent_at = handed.claim_sent_at
        self.flags = Flags()
        self.watchdog = Watchdog(clock)
        timing = timing_of_claim(settings.read_timing(), handed)
        self.lease = Lease(handed.claim_sent_at, timing, clock, self._on_lost, log)
        self.control = self._new_control()
        self._signals_control = self._new_control()
        self.calls = ControlCalls(self.lease, self.flags, clock, log)
        self.feed: MarkFeed | None = None
        self.heartbeats = Heartbeats(
            self._new_control,
            self.lease,
            self.watchdog,
            clock,
            log,
            newest_mark=self._newest_mark,
            on_renewed=self._on_renewed,
        )
        self.signals = SignalWait(
            self._signals_control,
            clock,
            timing.work_wait_s,
            on_cancel=self._on_cancel,
            on_ended=self._on_ended,
        )

    @property
    def timing(self) -> Timing:
        """The durations of this attempt."""
        return self.lease.timing

    def start(self) -> None:
        """Start what runs beside the main thread. Called right after the acceptance."""
        self.watchdog.start()
        self.lease.watch(self.watchdog)
        self.watchdog.at(self.claim_sent_at + self.timing.execution_timeout_s, self._on_time_up)
        self.heartbeats.start()
        self.signals.start()

    def stop(self) -> None:
        """End what runs beside the main thread, renewals last (L-10), and close every connection."""
        self.signals.stop()
        if self.feed is not None:
            self.feed.stop()
        self.heartbeats.stop()
        self.watchdog.stop()
        for client in self._clients:
            client.interrupt()
            client.close()

    def provisioner(self, spec: ExecutionSpec) -> Provisioner:
        """A new client of the provisioner, with this attempt's token."""
        provisioner = Provisioner(self._url(spec), spec.provisioner_token, timeouts=self._timeouts())
        self._clients.append(provisioner)
        return provisioner

    def manager(self, spec: ExecutionSpec, sandbox: Sandbox, activation: ActivateAnswer | None) -> Manager:
        """A new client of this exact manager, through the proxy."""
        manager = Manager(
            self._url(spec),
            spec.provisioner_token,
            sandbox_id=sandbox.sandbox_id,
            generation=sandbox.generation,
            activation_token=None if activation is None else activation.activation_token,
            timeouts=self._timeouts(),
        )
        self._clients.append(manager)
        return manager

    def feed_with(self, manager: Manager, mark_ms: int) -> None:
        """Begin to feed the dead-man's switch, which `take` has armed with `mark_ms`."""
        self.feed = MarkFeed(manager, self.lease, self.clock, self.log, mark_ms=mark_ms)
        self.feed.start()

    def undisturbed(self, call: Callable[[], T], cut: Callable[[], None]) -> T:
        """`call`, which only a lost lease cuts, by `cut`. Raises `LeaseLost`."""
        return self._cuttable(LOST_ONLY, call, cut)

    def interruptible(self, call: Callable[[], T], cut: Callable[[], None]) -> T:
        """`call`, which every flag cuts, by `cut`. Raises `LeaseLost` or `Halted`."""
        self.check()
        return self._cuttable(ANY_FLAG, call, cut)

    def check(self) -> None:
        """Raise what the flags ask for."""
        self._raise(ANY_FLAG)

    def _cuttable(self, on: frozenset[Flag], call: Callable[[], T], cut: Callable[[], None]) -> T:
        with self.flags.cutting(on, cut):
            try:
                return call()
            except Exception:
                self._raise(on)  # it may have failed because it was cut
                raise

    def _raise(self, on: frozenset[Flag]) -> None:
        flag = self.flags.first(on)
        if flag is Flag.LOST:
            raise LeaseLost
        if flag is not None:
            raise Halted(flag)

    def _on_lost(self) -> None:
        """In whichever thread noticed. Cuts whatever speaks to the control plane."""
        self.control.interrupt()
        self._signals_control.interrupt()
        self.heartbeats.cut()
        self.flags.raise_(Flag.LOST)
        self.watchdog.at(self.clock.monotonic() + LOST_EXIT_S, self._end_process)

    def _on_time_up(self) -> None:
        self.flags.raise_(Flag.TIMED_OUT)

    def _on_cancel(self) -> None:
        self.flags.raise_(Flag.CANCELLED)

    def _on_ended(self) -> None:
        """A hint that the attempt is over: a renewal says so for sure. That `finish` ends it is no news."""
        if not self.lease.is_ending:
            self.heartbeats.hurry()

    def _newest_mark(self) -> int | None:
        return None if self.feed is None else self.feed.newest_mark()

    def _on_renewed(self, renewed: Renewed) -> None:
        if self.feed is not None and renewed.mark_ms is not None:
            self.feed.confirmed(renewed.mark_ms, renewed.lease_ttl_s)
        if renewed.cancel_requested:
            self._on_cancel()

    def _new_control(self) -> JobControl:
        control = JobControl(
            self._settings.control_url,
            job=self.claim.job,
            lease_generation=self.claim.lease_generation,
            token=self.claim.worker_token,
            timeouts=self._timeouts(),
        )
        self._clients.append(control)
        return control

    def _url(self, spec: ExecutionSpec) -> str:
        return spec.provisioner_url or self._settings.provisioner_url

    def _timeouts(self) -> Timeouts:
        return Timeouts(call=self.timing.control_timeout_s, read=self.timing.control_timeout_s)


def timing_of_claim(timing: Timing, handed: HandedTurn) -> Timing:
    """The durations of one attempt: the control plane says the lifetime of the lease and of the turn."""
    return dataclasses.replace(
        timing, lease_ttl_s=handed.claim.lease_ttl_s, execution_timeout_s=handed.claim.execution_timeout_s
    )


class Beside(Generic[T]):
    """One call in a thread of its own, for what may go on at the same time."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._results: list[T] = []
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="beside", daemon=True)
        self._thread.start()

    def result(self) -> T:
        """Wait for it; raises what it raised."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._results[0]

    def _run(self) -> None:
        try:
            self._results.append(self._call())
        except Exception as failure:  # handed to whoever asks for the result
            self._failure = failure
