"""Calls to the control plane: which failures are tried again, and which end the lease.

Every call of a worker may be repeated: a request that was carried out and not answered gives the same answer again.
What differs is for how long: receipts by F-04, the rest until a restarting control plane is back.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from turnkeeper.client.http import CallError, ClientError
from turnkeeper.domain.settings import Timing
from turnkeeper.kit.clock import Clock
from turnkeeper.kit.log import Logger
from turnkeeper.runner.failure import LeaseLost
from turnkeeper.runner.flags import Flags
from turnkeeper.runner.heartbeat import exception_name
from turnkeeper.runner.lease import Lease, verdict_of

T = TypeVar("T")

TRIED_AGAIN: Final = frozenset({408, 502, 503, 504})
"""HTTP statuses after which a call is repeated (F-04). 409 and 410 are final answers."""


@dataclass(frozen=True)
class Patience:
    """The pauses between tries, in seconds: one try more than there are pauses."""

    pauses_s: tuple[float, ...]

    @classmethod
    def for_receipts(cls, timing: Timing) -> "Patience":
        """F-04: at most three tries, 5 s apart."""
        return cls((timing.receipt_delay_s,) * (timing.receipt_tries - 1))

    @classmethod
    def for_preparation(cls, timing: Timing) -> "Patience":
        """Long enough for a control plane that is being restarted: 9 s with the defaults."""
        unit_s = timing.heartbeat_retry_delay_s
        return cls((0.04 * unit_s, 0.2 * unit_s, 0.6 * unit_s, unit_s))

    @classmethod
    def for_the_end(cls, timing: Timing) -> "Patience":
        """What ends the run is tried for as long as a drain may last; then the reaper does it (F-01)."""
        unit_s = timing.drain_s / 30
        return cls((0.25 * unit_s, 0.5 * unit_s) + (unit_s,) * 29)


ONE_TRY: Final = Patience(())


class ControlCalls:
    """Carries out calls of the main thread. They end with `LeaseLost` as soon as the lease is."""

    def __init__(self, lease: Lease, flags: Flags, clock: Clock, log: Logger) -> None:
        self._lease = lease
        self._flags = flags
        self._clock = clock
        self._log = log

    def carry_out(self, operation: str, call: Callable[[], T], patience: Patience) -> T:
        """The answer to `call`. The `CallError` of the last try is raised where none came."""
        pauses_s = iter(patience.pauses_s)
        said: tuple[str, int | None] | None = None
        while True:
            if not self._lease.look() or self._flags.lost:
                raise LeaseLost
            try:
                return call()
            except CallError as error:
                said = self._judge(operation, error, said)
                pause_s = next(pauses_s, None)
                if pause_s is None or not is_tried_again(error):
                    raise
            self._clock.wait(self._flags.lost_event, pause_s)

    def _judge(self, operation: str, error: CallError, said: tuple[str, int | None] | None) -> tuple[str, int | None]:
        """What the failure means for the lease. It is logged once per outage (E-03); returns what was said of it."""
        if self._flags.lost:  # the call was cut by it
            raise LeaseLost from error
        status = error.status if isinstance(error, ClientError) else None
        what = (exception_name(error), status)
        if what != said:
            self._log.warning("agent_control_failure", operation=operation, exception=what[0], http_status=status)
        verdict = verdict_of(error) if isinstance(error, ClientError) else None
        if verdict is not None:
            self._lease.lose(verdict)
            raise LeaseLost from error
        return what


def is_tried_again(error: CallError) -> bool:
    """Transport failures and the statuses of F-04."""
    return error.status in TRIED_AGAIN if isinstance(error, ClientError) else error.retryable
