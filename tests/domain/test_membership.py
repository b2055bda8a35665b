"""Membership and activation machines, held against the arrows of the protocol's own text."""

from enum import StrEnum
from typing import TypeVar

import pytest

from turnkeeper.domain.machine import Refused
from turnkeeper.domain.membership import (
    ACTIVATION_TABLE,
    LIVE_ACTIVATIONS,
    MEMBERSHIP_TABLE,
    ActivationEvent,
    ActivationState,
    MembershipEvent,
    MembershipState,
    activation_transition,
    membership_transition,
)

S = TypeVar("S", bound=StrEnum)

# protocol.md, section 2; the last two lines are section 7: a fail-over quarantines every membership.
MEMBERSHIP_ARROWS = """
idle → active
active → idle | suspended | quarantined | lost
suspended → active | idle | lost
quarantined → idle | suspended | lost
idle → quarantined
suspended → quarantined
"""
ACTIVATION_ARROWS = """
preparing → admitted
admitted → settled
preparing → abandoned
preparing | admitted → quarantined
quarantined → settled | not_delivered | lost
"""


def arrows(text: str, states: type[S]) -> set[tuple[S, S]]:
    found: set[tuple[S, S]] = set()
    for line in text.strip().splitlines():
        left, right = line.split("→")
        found |= {(states(a.strip()), states(b.strip())) for a in left.split("|") for b in right.split("|")}
    return found


def test_membership_table_draws_exactly_the_protocols_arrows() -> None:
    """Proves: R-05 (the machine's part). No arrow more, none less."""
    drawn = {(state, following) for (state, _), following in MEMBERSHIP_TABLE.items() if state is not following}
    assert drawn == arrows(MEMBERSHIP_ARROWS, MembershipState)


@pytest.mark.parametrize("state", list(MembershipState))
@pytest.mark.parametrize("event", list(MembershipEvent))
def test_membership_every_state_and_event(state: MembershipState, event: MembershipEvent) -> None:
    """Every state x event is a move along an arrow, a stay, or a refusal that names both."""
    answer = membership_transition(state, event)
    if isinstance(answer, Refused):
        assert (answer.state, answer.event) == (state, event)
    else:
        assert answer is state or (state, answer) in arrows(MEMBERSHIP_ARROWS, MembershipState)


@pytest.mark.parametrize("event", list(MembershipEvent))
def test_lost_is_final(event: MembershipEvent) -> None:
    """Proves: R-05 (the machine's part). A LOST mark is never cleared, by no event at all."""
    assert isinstance(membership_transition(MembershipState.LOST, event), Refused)


@pytest.mark.parametrize("event", list(MembershipEvent))
def test_a_membership_begins_with_its_first_activation(event: MembershipEvent) -> None:
    """Absent -> active by an activation; nothing else creates one."""
    answer = membership_transition(None, event)
    if event is MembershipEvent.ACTIVATED:
        assert answer is MembershipState.ACTIVE
    else:
        assert isinstance(answer, Refused)


def test_nothing_may_use_a_quarantined_membership() -> None:
    """Glossary: quarantine waits for the verdict; an activation in between is refused."""
    assert isinstance(membership_transition(MembershipState.QUARANTINED, MembershipEvent.ACTIVATED), Refused)
    assert isinstance(membership_transition(MembershipState.ACTIVE, MembershipEvent.ACTIVATED), Refused)


def test_of_several_recoverers_one_wins() -> None:
    """Protocol, section 7: after the first verdict every other one is refused."""
    verdicts = (MembershipEvent.VERDICT_IDLE, MembershipEvent.VERDICT_SUSPENDED)
    for first in (*verdicts, MembershipEvent.LOST):
        after = membership_transition(MembershipState.QUARANTINED, first)
        assert not isinstance(after, Refused)
        for second in verdicts:
            assert isinstance(membership_transition(after, second), Refused)


def test_activation_table_draws_exactly_the_protocols_arrows() -> None:
    """No arrow more, none less."""
    assert {(state, following) for (state, _), following in ACTIVATION_TABLE.items()} == arrows(
        ACTIVATION_ARROWS, ActivationState
    )


@pytest.mark.parametrize("state", list(ActivationState))
@pytest.mark.parametrize("event", list(ActivationEvent))
def test_activation_every_state_and_event(state: ActivationState, event: ActivationEvent) -> None:
    """Every state x event; the states that are not live are final."""
    answer = activation_transition(state, event)
    if isinstance(answer, Refused):
        assert (answer.state, answer.event) == (state, event)
    else:
        assert (state, answer) in arrows(ACTIVATION_ARROWS, ActivationState)
        assert state in LIVE_ACTIVATIONS


def test_an_admitted_activation_is_never_abandoned_and_none_is_settled_before_admission() -> None:
    """Proves: R-02, F-05 (the machine's part)."""
    assert isinstance(activation_transition(ActivationState.ADMITTED, ActivationEvent.ABANDONED), Refused)
    assert isinstance(activation_transition(ActivationState.PREPARING, ActivationEvent.SETTLED), Refused)
    for state in (ActivationState.QUARANTINED, ActivationState.ABANDONED, ActivationState.SETTLED):
        assert isinstance(activation_transition(state, ActivationEvent.ADMITTED), Refused)
