"""An attempt: one ownership of a run by one worker (A-01). Open, or closed for good with one of these outcomes."""

from enum import StrEnum

from turnkeeper.domain.run import RunEvent


class AttemptOutcome(StrEnum):
    """How an attempt ended. It says what became of the attempt, not of the run."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    RELEASED = "released"
    LEASE_EXPIRED = "lease_expired"


_OUTCOMES = {
    RunEvent.FINISHED_COMPLETED: AttemptOutcome.COMPLETED,
    RunEvent.FINISHED_FAILED: AttemptOutcome.FAILED,
    RunEvent.FINISHED_CANCELLED: AttemptOutcome.CANCELLED,
    RunEvent.FINISHED_INTERRUPTED: AttemptOutcome.INTERRUPTED,
    RunEvent.RELEASED: AttemptOutcome.RELEASED,
    RunEvent.RELEASES_EXHAUSTED: AttemptOutcome.RELEASED,
    RunEvent.LEASE_EXPIRED: AttemptOutcome.LEASE_EXPIRED,
    RunEvent.LEASE_EXPIRED_LIVE: AttemptOutcome.LEASE_EXPIRED,
}


def outcome_of(event: RunEvent) -> AttemptOutcome | None:
    """The outcome of the attempt that a run's event closes; None where the event closes none."""
    return _OUTCOMES.get(event)
