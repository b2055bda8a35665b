"""A membership, and the activations that use it (protocol.md, section 2).

A membership is a conversation's place in a shared workspace: its native session and the last settled native turn. It
comes into being by its first activation. `lost` is final (R-05): no event leaves it.

An activation is one run's use of a membership. Until it is `admitted` the prompt cannot have been sent (F-05); from then
on only a settlement or a verdict says what became of it.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from turnkeeper.domain.machine import Refused, step


class MembershipState(StrEnum):
    """Where a membership is."""

    IDLE = "idle"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    QUARANTINED = "quarantined"
    LOST = "lost"


class MembershipEvent(StrEnum):
    """What may happen to a membership."""

    ACTIVATED = "activated"
    """A run takes it; the fence grows."""
    REACTIVATED = "reactivated"
    """The same attempt takes it once more, because the instance that it found had ended; the fence grows."""
    SETTLED = "settled"
    """The run ended at a known boundary."""
    SETTLED_SUSPENDED = "settled_suspended"
    """The same, with a question to the owner open."""
    ABANDONED = "abandoned"
    """The run ended before its admission."""
    RESUME_ABANDONED = "resume_abandoned"
    """A resume ended before its admission: the question is still open."""
    INPUT_ENDED = "input_ended"
    """The question ended without a resume, and the agent acknowledged it."""
    QUARANTINED = "quarantined"
    """An admitted run ended without a settlement; the fence grows and nothing may use the membership."""
    FAILED_OVER = "failed_over"
    """The database failed over: what it says about this membership may be too old (section 7)."""
    VERDICT_IDLE = "verdict_idle"
    VERDICT_SUSPENDED = "verdict_suspended"
    LOST = "lost"
    """Continuation cannot be proven, or an operator gave it up."""


_IDLE, _ACTIVE, _SUSPENDED = MembershipState.IDLE, MembershipState.ACTIVE, MembershipState.SUSPENDED
_QUARANTINED, _LOST = MembershipState.QUARANTINED, MembershipState.LOST

MEMBERSHIP_TABLE: Mapping[tuple[MembershipState, MembershipEvent], MembershipState] = MappingProxyType(
    {
        (_IDLE, MembershipEvent.ACTIVATED): _ACTIVE,
        (_IDLE, MembershipEvent.FAILED_OVER): _QUARANTINED,
        (_ACTIVE, MembershipEvent.REACTIVATED): _ACTIVE,
        (_ACTIVE, MembershipEvent.SETTLED): _IDLE,
        (_ACTIVE, MembershipEvent.SETTLED_SUSPENDED): _SUSPENDED,
        (_ACTIVE, MembershipEvent.ABANDONED): _IDLE,
        (_ACTIVE, MembershipEvent.RESUME_ABANDONED): _SUSPENDED,
        (_ACTIVE, MembershipEvent.QUARANTINED): _QUARANTINED,
        (_ACTIVE, MembershipEvent.FAILED_OVER): _QUARANTINED,
        (_ACTIVE, MembershipEvent.LOST): _LOST,
        (_SUSPENDED, MembershipEvent.ACTIVATED): _ACTIVE,
        (_SUSPENDED, MembershipEvent.INPUT_ENDED): _IDLE,
        (_SUSPENDED, MembershipEvent.FAILED_OVER): _QUARANTINED,
        (_SUSPENDED, MembershipEvent.LOST): _LOST,
        (_QUARANTINED, MembershipEvent.VERDICT_IDLE): _IDLE,
        (_QUARANTINED, MembershipEvent.VERDICT_SUSPENDED): _SUSPENDED,
        (_QUARANTINED, MembershipEvent.LOST): _LOST,
    }
)


def membership_transition(
    state: MembershipState | None, event: MembershipEvent
) -> MembershipState | Refused[MembershipState, MembershipEvent]:
    """The next state, or `Refused`. `None` is the membership that does not exist yet: only `activated` creates it."""
    if state is None:
        if event is MembershipEvent.ACTIVATED:
            return MembershipState.ACTIVE
        return Refused(MembershipState.IDLE, event)
    return step(MEMBERSHIP_TABLE, state, event)


class ActivationState(StrEnum):
    """Where an activation is."""

    PREPARING = "preparing"
    ADMITTED = "admitted"
    QUARANTINED = "quarantined"
    SETTLED = "settled"
    ABANDONED = "abandoned"
    NOT_DELIVERED = "not_delivered"
    LOST = "lost"


class ActivationEvent(StrEnum):
    """What may happen to an activation."""

    ADMITTED = "admitted"
    SETTLED = "settled"
    ABANDONED = "abandoned"
    QUARANTINED = "quarantined"
    VERDICT_SETTLED = "verdict_settled"
    """The supervisor holds the settlement, or the agent acknowledged the cancel."""
    VERDICT_NOT_DELIVERED = "verdict_not_delivered"
    """Never admitted, or the supervisor or its journal shows that the prompt was never written."""
    VERDICT_LOST = "verdict_lost"


LIVE_ACTIVATIONS = frozenset({ActivationState.PREPARING, ActivationState.ADMITTED, ActivationState.QUARANTINED})
"""At most one per membership; the others are final."""

ACTIVATION_TABLE: Mapping[tuple[ActivationState, ActivationEvent], ActivationState] = MappingProxyType(
    {
        (ActivationState.PREPARING, ActivationEvent.ADMITTED): ActivationState.ADMITTED,
        (ActivationState.PREPARING, ActivationEvent.ABANDONED): ActivationState.ABANDONED,
        (ActivationState.PREPARING, ActivationEvent.QUARANTINED): ActivationState.QUARANTINED,
        (ActivationState.ADMITTED, ActivationEvent.SETTLED): ActivationState.SETTLED,
        (ActivationState.ADMITTED, ActivationEvent.QUARANTINED): ActivationState.QUARANTINED,
        (ActivationState.QUARANTINED, ActivationEvent.VERDICT_SETTLED): ActivationState.SETTLED,
        (ActivationState.QUARANTINED, ActivationEvent.VERDICT_NOT_DELIVERED): ActivationState.NOT_DELIVERED,
        (ActivationState.QUARANTINED, ActivationEvent.VERDICT_LOST): ActivationState.LOST,
    }
)


def activation_transition(
    state: ActivationState, event: ActivationEvent
) -> ActivationState | Refused[ActivationState, ActivationEvent]:
    """The next state, or `Refused`."""
    return step(ACTIVATION_TABLE, state, event)
