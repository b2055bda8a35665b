"""Dispatch: when a waiting run may be claimed (D-01; protocol.md, section 3).

Every transaction that changes one of these facts holds the scope lock and sets `ready_at` by this predicate. `explain`
shows an owner or operator the same reasons.
"""

from dataclasses import dataclass
from enum import StrEnum

from turnkeeper.domain.membership import MembershipState
from turnkeeper.domain.run import RunKind, RunStatus


class ConversationState(StrEnum):
    """Where a conversation is. `lost` and `closed` are final."""

    OPEN = "open"
    LOST = "lost"
    CLOSED = "closed"


class WaitReason(StrEnum):
    """Why a run is not ready."""

    NOT_PENDING = "not_pending"
    CANCELLED = "cancelled"
    CONVERSATION_LOST = "conversation_lost"
    CONVERSATION_CLOSED = "conversation_closed"
    MEMBERSHIP_LOST = "membership_lost"
    BEHIND_ANOTHER = "behind_another"
    """An earlier run of its conversation has not ended."""
    QUEUE_PAUSED = "queue_paused"
    MEMBERSHIP_ACTIVE = "membership_active"
    MEMBERSHIP_QUARANTINED = "membership_quarantined"
    QUESTION_OPEN = "question_open"
    """The agent waits for an answer, and this run does not carry it."""
    NO_QUESTION_OPEN = "no_question_open"
    """A resume whose question is not open."""
    CLEANUP_PENDING = "cleanup_pending"
    OTHER_TREE_LIVE = "other_tree_live"
    OWNER_FULL = "owner_full"


@dataclass(frozen=True)
class DispatchFacts:
    """Everything that readiness depends on, read under the scope lock.

    `membership` is None where the conversation has none yet. `heads_line`: no earlier run of the conversation is
    non-terminal. `other_tree_live`: a run of another tree of the scope is running, cancel_requested or recovering.
    `owner_room`: the owner has room for the run's tree, which a tree that is already counted always has.
    """

    status: RunStatus
    kind: RunKind
    cancel_requested: bool
    heads_line: bool
    conversation: ConversationState
    queue_paused: bool
    membership: MembershipState | None
    cleanup_pending: bool
    other_tree_live: bool
    owner_room: bool


@dataclass(frozen=True)
class Ready:
    """The run may be claimed: `ready_at` is to be set."""


@dataclass(frozen=True)
class NotReady:
    """`ready_at` is to be NULL. `reasons` are all that apply, the most lasting first; never empty."""

    reasons: tuple[WaitReason, ...]

    @property
    def reason(self) -> WaitReason:
        """The first of them."""
        return self.reasons[0]


def ready(facts: DispatchFacts) -> Ready | NotReady:
    """The predicate of D-01."""
    checks = (
        (facts.status is not RunStatus.PENDING, WaitReason.NOT_PENDING),
        (facts.cancel_requested, WaitReason.CANCELLED),
        (facts.conversation is ConversationState.LOST, WaitReason.CONVERSATION_LOST),
        (facts.conversation is ConversationState.CLOSED, WaitReason.CONVERSATION_CLOSED),
        (facts.membership is MembershipState.LOST, WaitReason.MEMBERSHIP_LOST),
        (not facts.heads_line, WaitReason.BEHIND_ANOTHER),
        (facts.queue_paused, WaitReason.QUEUE_PAUSED),
        (facts.membership is MembershipState.ACTIVE, WaitReason.MEMBERSHIP_ACTIVE),
        (facts.membership is MembershipState.QUARANTINED, WaitReason.MEMBERSHIP_QUARANTINED),
        (
            facts.membership is MembershipState.SUSPENDED and facts.kind is not RunKind.RESUME,
            WaitReason.QUESTION_OPEN,
        ),
        (
            facts.membership in (None, MembershipState.IDLE) and facts.kind is RunKind.RESUME,
            WaitReason.NO_QUESTION_OPEN,
        ),
        (facts.cleanup_pending, WaitReason.CLEANUP_PENDING),
        (facts.other_tree_live, WaitReason.OTHER_TREE_LIVE),
        (not facts.owner_room, WaitReason.OWNER_FULL),
    )
    reasons = tuple(reason for applies, reason in checks if applies)
    return NotReady(reasons) if reasons else Ready()
