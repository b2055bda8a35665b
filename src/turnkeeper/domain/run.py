"""A run: one turn of a conversation (protocol.md, section 2).

`pending` waits; `running` and `cancel_requested` have an attempt with a lease; `recovering` has lost its attempt while an
activation was live, and waits for the verdict; the other four are terminal and absorbing (A-03). `interrupted` means
that the agent waits for the owner's answer, which another run (`resume`) carries.

A cancellation is a fact of its own (`cancel_requested_at`), beside the status: a run that has it never ends `completed`,
on any path. The table says what happens without it; `transition` adds the rule.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from turnkeeper.domain.machine import Refused, step


class RunStatus(StrEnum):
    """Where a run is."""

    PENDING = "pending"
    RUNNING = "running"
    CANCEL_REQUESTED = "cancel_requested"
    RECOVERING = "recovering"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


class RunKind(StrEnum):
    """What a run carries: an owner's message, an owner's answer, or another agent's task."""

    CHAT = "chat"
    RESUME = "resume"
    SUBAGENT = "subagent"


class RunEvent(StrEnum):
    """What may happen to a run."""

    CLAIMED = "claimed"
    """A worker got an attempt and its lease."""
    RELEASED = "released"
    """A host proved that its child never took the turn (H-02)."""
    RELEASES_EXHAUSTED = "releases_exhausted"
    """The same, once too often (H-05)."""
    CANCEL_REQUESTED = "cancel_requested"
    """The owner, a parent's end or a cleanup asks the run to stop."""
    WAITING_FAILED = "waiting_failed"
    """A waiting run can never start: conversation lost or closed, no host for it, tree closed."""
    FINISHED_COMPLETED = "finished_completed"
    """The worker's own word, or the reaper's for an activation that is settled with that outcome."""
    FINISHED_FAILED = "finished_failed"
    FINISHED_CANCELLED = "finished_cancelled"
    FINISHED_INTERRUPTED = "finished_interrupted"
    """The turn is settled and a question to the owner is open."""
    LEASE_EXPIRED = "lease_expired"
    """The attempt ended without its own word, and nothing is left to find out."""
    LEASE_EXPIRED_LIVE = "lease_expired_live"
    """The attempt ended without its own word while an activation was live: a verdict is needed."""
    VERDICT_COMPLETED = "verdict_completed"
    """Recovery found the settlement of a completed turn."""
    VERDICT_FAILED = "verdict_failed"
    VERDICT_CANCELLED = "verdict_cancelled"
    """Recovery found that the agent acknowledged the cancel."""


TERMINAL = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.INTERRUPTED})
"""Absorbing: no event leaves them."""

LIVE = frozenset({RunStatus.RUNNING, RunStatus.CANCEL_REQUESTED, RunStatus.RECOVERING})
"""Something may still act for the run; no other tree of its scope may start (D-01)."""

LEASED = frozenset({RunStatus.RUNNING, RunStatus.CANCEL_REQUESTED})
"""An attempt is open, and its worker may write under its lease."""

_P, _R, _C, _V = RunStatus.PENDING, RunStatus.RUNNING, RunStatus.CANCEL_REQUESTED, RunStatus.RECOVERING
_COMPLETED, _FAILED = RunStatus.COMPLETED, RunStatus.FAILED
_CANCELLED, _INTERRUPTED = RunStatus.CANCELLED, RunStatus.INTERRUPTED

TABLE: Mapping[tuple[RunStatus, RunEvent], RunStatus] = MappingProxyType(
    {
        (_P, RunEvent.CLAIMED): _R,
        (_P, RunEvent.CANCEL_REQUESTED): _CANCELLED,
        (_P, RunEvent.WAITING_FAILED): _FAILED,
        (_R, RunEvent.RELEASED): _P,
        (_R, RunEvent.RELEASES_EXHAUSTED): _FAILED,
        (_R, RunEvent.CANCEL_REQUESTED): _C,
        (_R, RunEvent.FINISHED_COMPLETED): _COMPLETED,
        (_R, RunEvent.FINISHED_FAILED): _FAILED,
        (_R, RunEvent.FINISHED_CANCELLED): _CANCELLED,
        (_R, RunEvent.FINISHED_INTERRUPTED): _INTERRUPTED,
        (_R, RunEvent.LEASE_EXPIRED): _FAILED,
        (_R, RunEvent.LEASE_EXPIRED_LIVE): _V,
        # A second cancel gets the same answer.
        (_C, RunEvent.CANCEL_REQUESTED): _C,
        # The child never took the turn, so there is nothing to confirm and nothing to queue again (H-05).
        (_C, RunEvent.RELEASED): _CANCELLED,
        (_C, RunEvent.RELEASES_EXHAUSTED): _CANCELLED,
        # The agent was done before the cancel reached it: the output is kept, the run was cancelled.
        (_C, RunEvent.FINISHED_COMPLETED): _CANCELLED,
        (_C, RunEvent.FINISHED_FAILED): _FAILED,
        (_C, RunEvent.FINISHED_CANCELLED): _CANCELLED,
        # A turn that was asked to stop does not go on waiting for an answer; the service ends its input.
        (_C, RunEvent.FINISHED_INTERRUPTED): _CANCELLED,
        (_C, RunEvent.LEASE_EXPIRED): _FAILED,
        (_C, RunEvent.LEASE_EXPIRED_LIVE): _V,
        # A cancel cannot hurry a verdict; the fact is stored and decides how the verdict is read.
        (_V, RunEvent.CANCEL_REQUESTED): _V,
        (_V, RunEvent.VERDICT_COMPLETED): _COMPLETED,
        (_V, RunEvent.VERDICT_FAILED): _FAILED,
        (_V, RunEvent.VERDICT_CANCELLED): _CANCELLED,
        # Cancelling a run that waits for an answer ends its input, not the run, which has already ended.
        (_INTERRUPTED, RunEvent.CANCEL_REQUESTED): _INTERRUPTED,
    }
)


def transition(
    status: RunStatus, event: RunEvent, *, cancel_requested: bool
) -> RunStatus | Refused[RunStatus, RunEvent]:
    """The next status, or `Refused`. `cancel_requested`: the run has `cancel_requested_at`, before this event."""
    following = step(TABLE, status, event)
    if isinstance(following, Refused) or status in TERMINAL:
        return following
    if not (cancel_requested or status is RunStatus.CANCEL_REQUESTED):
        return following
    if status is RunStatus.PENDING and event is RunEvent.CLAIMED:
        return Refused(status, event)  # a cancelled run never starts
    if following in {RunStatus.COMPLETED, RunStatus.INTERRUPTED, RunStatus.PENDING}:
        return RunStatus.CANCELLED
    return following


class DeliveryStatus(StrEnum):
    """What is known about a message's way to the agent."""

    QUEUED = "queued"
    DELIVERING = "delivering"
    DELIVERED = "delivered"
    NOT_DELIVERED = "not_delivered"
    UNKNOWN = "unknown"


def delivery_of(status: RunStatus, admitted: bool | None, *, written: bool | None = None) -> DeliveryStatus:
    """The delivery status that goes with a run's status (A-05), in the same transaction.

    `admitted`: a fact of the database; None where it could not be read. `written`: what the supervisor or its journal
    says about the prompt, None without such evidence. An ended run whose prompt was admitted and of which nobody can
    say whether it was written is `unknown`, never guessed.
    """
    match status:
        case RunStatus.PENDING:
            return DeliveryStatus.QUEUED
        case RunStatus.RUNNING | RunStatus.CANCEL_REQUESTED | RunStatus.RECOVERING:
            return DeliveryStatus.DELIVERED if written else DeliveryStatus.DELIVERING
        case RunStatus.COMPLETED | RunStatus.INTERRUPTED:
            return DeliveryStatus.DELIVERED
        case RunStatus.FAILED | RunStatus.CANCELLED:
            if admitted is False or written is False:
                return DeliveryStatus.NOT_DELIVERED
            return DeliveryStatus.DELIVERED if written else DeliveryStatus.UNKNOWN
