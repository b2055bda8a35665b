"""The worker's own view of its lease (L-05 to L-08).

The lease is lost for good when the control plane refuses it, when it rejects the worker's credential, or when one
lifetime has passed since the last confirmed renewal was *sent*. Whoever notices first decides; nothing brings it back,
not even a confirmation that comes later.

One refusal is no loss: `finish` ends the attempt, and a renewal that crosses it is refused because the worker itself has
just ended its run. While a `finish` is on its way the refusal is kept back, and the answer to `finish` says what it was.
Where that answer never comes nothing more is sent (L-05), and the log says no more than that.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Generator
from enum import StrEnum

from turnkeeper.client.http import ClientError
from turnkeeper.domain.errors import ProblemCode
from turnkeeper.domain.lease import worker_stop_at
from turnkeeper.domain.settings import Timing
from turnkeeper.kit.clock import Clock
from turnkeeper.kit.log import Logger, get_logger
from turnkeeper.runner.watchdog import Watchdog


class LeaseVerdict(StrEnum):
    """Why a lease is lost."""

    REFUSED = "refused"
    CREDENTIAL_REJECTED = "credential_rejected"
    EXPIRED = "expired"


class Lease:
    """Shared by the threads of one worker. `on_lost` is called once and must not block."""

    def __init__(
        self, sent_at: float, timing: Timing, clock: Clock, on_lost: Callable[[], None], log: Logger | None = None
    ) -> None:
        """`sent_at`: when the claim was first sent; it counts as the first confirmed renewal. `log` names the attempt."""
        self._clock = clock
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._sent_at = sent_at
        self._timing = timing
        self._verdict: LeaseVerdict | None = None
        self._finish_sent = False  # and not answered
        self._finish_in_flight = False
        self._finished = False
        self._kept_back: LeaseVerdict | None = None
        self._log = log or get_logger("runner.lease")

    @property
    def timing(self) -> Timing:
        """With the lifetime that the control plane named last."""
        return self._timing

    @property
    def verdict(self) -> LeaseVerdict | None:
        """Why it is lost; None while it is held."""
        return self._verdict

    @property
    def is_renewable(self) -> bool:
        """Whether a renewal makes sense: it is held as far as anybody knows, and the run is not ended."""
        with self._lock:
            return self._verdict is None and self._kept_back is None and not self._finished

    @property
    def is_ending(self) -> bool:
        """Whether a `finish` was sent: it may have ended the attempt."""
        with self._lock:
            return self._finish_sent or self._finished

    def look(self) -> bool:
        """Whether a write may be sent now; loses the lease if its time has passed. Not left to the watchdog alone: after a
        pause of the whole process any thread may be the first to go on (L-08)."""
        if self._verdict is None and self._clock.monotonic() >= self.ends_at:
            self.lose(LeaseVerdict.EXPIRED)
        return self._verdict is None

    @property
    def last_confirmed_sent_at(self) -> float:
        """When the last confirmed renewal was sent."""
        with self._lock:
            return self._sent_at

    @property
    def ends_at(self) -> float:
        """When the worker stops by itself."""
        with self._lock:
            return worker_stop_at(self._sent_at, self._timing)

    def confirm(self, sent_at: float, lease_ttl_s: float) -> bool:
        """A renewal that was sent at `sent_at` was confirmed. False: too late, the lease is lost."""
        with self._lock:
            if self._verdict is None and self._clock.monotonic() < worker_stop_at(self._sent_at, self._timing):
                if sent_at >= self._sent_at:
                    self._sent_at = sent_at
                    if lease_ttl_s != self._timing.lease_ttl_s:
                        self._timing = dataclasses.replace(self._timing, lease_ttl_s=lease_ttl_s)
                return True
        self.lose(LeaseVerdict.EXPIRED)
        return False

    def lose(self, verdict: LeaseVerdict) -> None:
        """The first verdict stays. Once the run was ended by its own word there is nothing to lose any more."""
        with self._lock:
            if self._verdict is not None or self._finished:
                return
            self._verdict = verdict
            finish_unanswered = self._finish_sent
        # A `finish` without an answer may have ended the attempt: then nothing was lost, and the run's record says so.
        event = "agent_finish_unconfirmed" if finish_unanswered else "agent_lease_lost"
        self._log.warning(event, verdict=verdict.value)
        self._on_lost()

    def keeps_back(self, verdict: LeaseVerdict) -> bool:
        """A renewal was refused. True: that says nothing yet, since a `finish` is on its way or was answered."""
        with self._lock:
            if not (self._finished or self._finish_in_flight):
                return False
            self._kept_back = self._kept_back or verdict
            return True

    @contextlib.contextmanager
    def finishing(self) -> Generator[None]:
        """Around one send of `finish`. It raises where no answer came; then a refusal that was kept back counts."""
        with self._lock:
            self._finish_in_flight = self._finish_sent = True
        try:
            yield
        except BaseException:
            with self._lock:
                self._finish_in_flight = False
                kept_back = self._kept_back
            if kept_back is not None:
                self.lose(kept_back)
            raise
        with self._lock:
            self._finish_in_flight = self._finish_sent = False
            self._finished = self._verdict is None

    def watch(self, watchdog: Watchdog) -> None:
        """Have `watchdog` enforce the end."""

        def look() -> None:
            ends_at = self.ends_at
            if self._verdict is not None:
                return
            if self._clock.monotonic() >= ends_at:
                self.lose(LeaseVerdict.EXPIRED)
            else:
                watchdog.at(ends_at, look)  # it was renewed in the meantime

        watchdog.at(self.ends_at, look)


def verdict_of(error: ClientError, *, heartbeat: bool = False) -> LeaseVerdict | None:
    """What an answer of the control plane to this attempt says about its lease; None: nothing.

    Any 409 to a heartbeat refuses the lease (L-05). Other calls may also be refused for a reason of their own, and say
    so by their code.
    """
    if error.status == 410 or (error.status == 409 and (heartbeat or error.code == ProblemCode.LEASE_REFUSED)):
        return LeaseVerdict.REFUSED
    if error.status in (401, 403, 404):
        return LeaseVerdict.CREDENTIAL_REJECTED
    return None
