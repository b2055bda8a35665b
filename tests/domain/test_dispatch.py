"""Readiness over every combination of its facts."""

import itertools
from dataclasses import replace

import pytest

from turnkeeper.domain.dispatch import ConversationState, DispatchFacts, NotReady, Ready, WaitReason, ready
from turnkeeper.domain.membership import MembershipState
from turnkeeper.domain.run import RunKind, RunStatus

GOOD = DispatchFacts(
    status=RunStatus.PENDING,
    kind=RunKind.CHAT,
    cancel_requested=False,
    heads_line=True,
    conversation=ConversationState.OPEN,
    queue_paused=False,
    membership=None,
    cleanup_pending=False,
    other_tree_live=False,
    owner_room=True,
)
MEMBERSHIPS = (None, *MembershipState)
FLAGS = list(itertools.product((False, True), repeat=6))


@pytest.mark.parametrize("membership", MEMBERSHIPS, ids=str)
@pytest.mark.parametrize("kind", list(RunKind))
@pytest.mark.parametrize("conversation", list(ConversationState))
def test_every_combination(membership: MembershipState | None, kind: RunKind, conversation: ConversationState) -> None:
    """Proves: D-01 (the predicate), over all 27,648 combinations of its facts, said once more in other words."""
    for status in RunStatus:
        for heads, paused, cleanup, other, room, cancelled in FLAGS:
            facts = DispatchFacts(
                status, kind, cancelled, heads, conversation, paused, membership, cleanup, other, room
            )
            usable = (
                membership is MembershipState.SUSPENDED
                if kind is RunKind.RESUME
                else membership in (None, MembershipState.IDLE)
            )
            wanted = (
                status is RunStatus.PENDING
                and not cancelled
                and heads
                and conversation is ConversationState.OPEN
                and not paused
                and usable
                and not cleanup
                and not other
                and room
            )
            answer = ready(facts)
            assert isinstance(answer, Ready) == wanted, facts
            if isinstance(answer, NotReady):
                assert answer.reasons
                assert answer.reason is answer.reasons[0]
                assert len(set(answer.reasons)) == len(answer.reasons)


ONE_FACT = [
    (replace(GOOD, status=RunStatus.RUNNING), WaitReason.NOT_PENDING),
    (replace(GOOD, cancel_requested=True), WaitReason.CANCELLED),
    (replace(GOOD, conversation=ConversationState.LOST), WaitReason.CONVERSATION_LOST),
    (replace(GOOD, conversation=ConversationState.CLOSED), WaitReason.CONVERSATION_CLOSED),
    (replace(GOOD, membership=MembershipState.LOST), WaitReason.MEMBERSHIP_LOST),
    (replace(GOOD, heads_line=False), WaitReason.BEHIND_ANOTHER),
    (replace(GOOD, queue_paused=True), WaitReason.QUEUE_PAUSED),
    (replace(GOOD, membership=MembershipState.ACTIVE), WaitReason.MEMBERSHIP_ACTIVE),
    (replace(GOOD, membership=MembershipState.QUARANTINED), WaitReason.MEMBERSHIP_QUARANTINED),
    (replace(GOOD, membership=MembershipState.SUSPENDED), WaitReason.QUESTION_OPEN),
    (replace(GOOD, kind=RunKind.RESUME), WaitReason.NO_QUESTION_OPEN),
    (replace(GOOD, cleanup_pending=True), WaitReason.CLEANUP_PENDING),
    (replace(GOOD, other_tree_live=True), WaitReason.OTHER_TREE_LIVE),
    (replace(GOOD, owner_room=False), WaitReason.OWNER_FULL),
]


@pytest.mark.parametrize(("facts", "reason"), ONE_FACT, ids=lambda value: getattr(value, "value", ""))
def test_one_fact_one_reason(facts: DispatchFacts, reason: WaitReason) -> None:
    """Proves: D-01. Each fact alone keeps a run waiting, and is named."""
    assert ready(GOOD) == Ready()
    assert ready(facts) == NotReady((reason,))


def test_every_reason_is_reached() -> None:
    """No reason without a fact."""
    assert {reason for _, reason in ONE_FACT} == set(WaitReason)


def test_a_resume_is_ready_only_with_its_question_open() -> None:
    """Proves: D-07 (the predicate). Suspended: the resume and nothing else."""
    suspended = replace(GOOD, membership=MembershipState.SUSPENDED)
    assert ready(replace(suspended, kind=RunKind.RESUME)) == Ready()
    assert ready(replace(suspended, kind=RunKind.SUBAGENT)) == NotReady((WaitReason.QUESTION_OPEN,))
