"""The thread that renews the lease (L-02 to L-06, E-01 to E-03).

It depends on nothing that the agent does. Each renewal leaves by the schedule of `domain.lease`; a failed one is
repeated after the retry delay while the lease can still be valid; a refusal ends it. The end of the lease is not its
business: the watchdog enforces that, also while a request of this thread hangs (L-07). It also bounds each request as a
whole, by the clock of the schedule, so that nothing that the client waits for can stop that: the client's own bound on a
whole call begins when the request does, and the name service has none.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from turnkeeper.client.control import JobControl
from turnkeeper.client.http import TOTAL_TIMEOUT, CallError, ClientError, ConnectionFailed
from turnkeeper.domain.lease import may_send, next_heartbeat_at
from turnkeeper.kit.clock import Clock
from turnkeeper.kit.log import Logger
from turnkeeper.runner.lease import Lease, verdict_of
from turnkeeper.runner.watchdog import Watchdog
from turnkeeper.wire.worker import HeartbeatAnswer


@dataclass(frozen=True)
class Renewed:
    """What a confirmed renewal gives to others. `mark_ms` is the newest mark from before it was sent, or None."""

    mark_ms: int | None
    lease_ttl_s: float
    cancel_requested: bool


class Heartbeats:
    """`newest_mark` and `on_renewed` must not block: a renewal never waits for the sandbox (L-12)."""

    def __init__(
        self,
        new_control: Callable[[], JobControl],
        lease: Lease,
        watchdog: Watchdog,
        clock: Clock,
        log: Logger,
        *,
        newest_mark: Callable[[], int | None],
        on_renewed: Callable[[Renewed], None],
    ) -> None:
        self._new_control = new_control
        self._control = new_control()
        self._lease = lease
        self._watchdog = watchdog
        self._clock = clock
        self._log = log
        self._newest_mark = newest_mark
        self._on_renewed = on_renewed
        self._stopping = False
        self._hurry = threading.Event()
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin; the first renewal leaves one interval after the claim."""
        self._thread.start()

    def stop(self) -> None:
        """End it. A request in flight is cut."""
        self._stopping = True
        self._hurry.set()
        self.cut()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def cut(self) -> None:
        """End a request in flight."""
        self._control.interrupt()

    def hurry(self) -> None:
        """Renew now: something hints that the lease may be gone, and only a renewal says so for sure."""
        self._hurry.set()

    def _run(self) -> None:
        at = self._lease.last_confirmed_sent_at + self._lease.timing.heartbeat_interval_s
        while not self._stopping and self._lease.is_renewable:
            hurried = self._clock.wait(self._hurry, at - self._clock.monotonic())
            self._hurry.clear()
            if self._stopping or not self._lease.is_renewable:
                return
            if not hurried and not may_send(at, self._lease.last_confirmed_sent_at, self._lease.timing):
                return  # no answer could come in time; the watchdog ends the lease
            sent_at = self._clock.monotonic()
            succeeded = self._renew(sent_at)
            at = next_heartbeat_at(sent_at, self._clock.monotonic(), succeeded, self._lease.timing)
            if not succeeded and not self._stopping and self._lease.is_renewable:
                self._note_retry(at)

    def _renew(self, sent_at: float) -> bool:
        mark_ms = self._newest_mark()
        try:
            answer = self._ask(sent_at)
        except CallError as error:
            verdict = verdict_of(error, heartbeat=True) if isinstance(error, ClientError) else None
            if verdict is not None and self._lease.keeps_back(verdict):
                return False  # it has crossed the end of the run
            self._note_failure(error)
            if verdict is not None:
                self._lease.lose(verdict)
            return False
        if not self._lease.confirm(sent_at, answer.lease_ttl_s):
            return False
        if self._failures:
            self._log.info("agent_heartbeat_recovered", failures=self._failures)
            self._failures = 0
        self._on_renewed(Renewed(mark_ms, answer.lease_ttl_s, answer.cancel_requested))
        return True

    def _ask(self, sent_at: float) -> HeartbeatAnswer:
        """One request, bounded as a whole. A client that was cut cannot be used again."""
        control, timeout_s = self._control, self._lease.timing.heartbeat_timeout_s
        alarm = self._watchdog.at(sent_at + timeout_s, control.interrupt)
        try:
            return control.heartbeat(timeout_s)
        except ConnectionFailed as error:
            if alarm.rang and error.kind == "Interrupted" and self._lease.verdict is None and not self._stopping:
                raise ConnectionFailed(error.operation, TOTAL_TIMEOUT, sent=error.sent) from error
            raise
        finally:
            alarm.cancel()
            if alarm.rang and self._lease.verdict is None and not self._stopping:
                self._control = self._new_control()

    def _note_failure(self, error: CallError) -> None:
        if self._lease.verdict is not None:
            return  # the loss has cut it: that is told, and this is nothing of the control plane's
        self._failures += 1
        if self._failures == 1 and not self._stopping:  # once per outage (E-03)
            note_control_failure(self._log, "heartbeat", error)

    def _note_retry(self, at: float) -> None:
        now = self._clock.monotonic()
        self._log.warning(
            "agent_heartbeat_retry",
            failures=self._failures,
            since_confirmed_s=round(now - self._lease.last_confirmed_sent_at, 3),
            retry_in_s=round(at - now, 3),
        )


def note_control_failure(log: Logger, operation: str, error: CallError) -> None:
    """A call that failed: operation, class, and the status where there is one (E-01). `log` names run and attempt."""
    status = error.status if isinstance(error, ClientError) else None
    log.warning("agent_control_failure", operation=operation, exception=exception_name(error), http_status=status)


def exception_name(error: CallError) -> str:
    """The class that says most: the transport's own where there is one (E-01). Never a message (E-02)."""
    return error.kind if isinstance(error, ConnectionFailed) else type(error).__name__
