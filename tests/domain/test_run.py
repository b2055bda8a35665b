"""The run machine, held against the arrows of the protocol's own text."""

import pytest

from turnkeeper.domain.machine import Refused
from turnkeeper.domain.run import (
    LEASED,
    LIVE,
    TABLE,
    TERMINAL,
    DeliveryStatus,
    RunEvent,
    RunStatus,
    delivery_of,
    transition,
)

# protocol.md, section 2, word for word. The table is held against this, not against itself.
PROTOCOL_ARROWS = """
pending → running
running → completed | failed | cancelled | interrupted
pending → cancelled | failed
running → pending
running → cancel_requested
cancel_requested → cancelled | failed
running | cancel_requested → recovering
recovering → completed | failed | cancelled
"""

CASES = [(status, event, cancel) for status in RunStatus for event in RunEvent for cancel in (False, True)]


def arrows(text: str) -> set[tuple[RunStatus, RunStatus]]:
    found: set[tuple[RunStatus, RunStatus]] = set()
    for line in text.strip().splitlines():
        left, right = line.split("→")
        found |= {(RunStatus(a.strip()), RunStatus(b.strip())) for a in left.split("|") for b in right.split("|")}
    return found


def test_table_draws_exactly_the_protocols_arrows() -> None:
    """Proves: A-03. No arrow more, none less; events that keep a state draw none."""
    drawn = {(state, following) for (state, _), following in TABLE.items() if state is not following}
    assert drawn == arrows(PROTOCOL_ARROWS)


@pytest.mark.parametrize(("status", "event", "cancel"), CASES)
def test_every_state_and_event(status: RunStatus, event: RunEvent, cancel: bool) -> None:
    """Proves: A-03. Every state x event is a move along a protocol arrow, a stay, or a refusal that names both."""
    answer = transition(status, event, cancel_requested=cancel)
    if isinstance(answer, Refused):
        assert (answer.state, answer.event) == (status, event)
        assert status.value in answer.reason
        assert event.value in answer.reason
        return
    assert answer is status or (status, answer) in arrows(PROTOCOL_ARROWS) | {
        # With the cancel stored before the status followed: the rule moves it, along arrows of its own.
        (RunStatus.RUNNING, RunStatus.CANCELLED),
    }
    if status in TERMINAL:
        assert answer is status


@pytest.mark.parametrize("status", list(RunStatus))
@pytest.mark.parametrize("event", list(RunEvent))
def test_a_cancelled_run_never_ends_completed(status: RunStatus, event: RunEvent) -> None:
    """Protocol, section 2: a run with `cancel_requested_at` never ends completed, on any path, and is never queued again."""
    answer = transition(status, event, cancel_requested=True)
    if status not in TERMINAL:
        assert answer not in (RunStatus.COMPLETED, RunStatus.INTERRUPTED)
    if status is not RunStatus.PENDING:
        assert answer is not RunStatus.PENDING
    if status is RunStatus.PENDING:
        assert answer is not RunStatus.RUNNING


def test_a_settled_completion_of_a_cancelled_run_ends_cancelled() -> None:
    """Protocol, section 2: with its output kept, on the worker's word as on the verdict's."""
    for status, event in (
        (RunStatus.RUNNING, RunEvent.FINISHED_COMPLETED),
        (RunStatus.CANCEL_REQUESTED, RunEvent.FINISHED_COMPLETED),
        (RunStatus.RECOVERING, RunEvent.VERDICT_COMPLETED),
    ):
        assert transition(status, event, cancel_requested=True) is RunStatus.CANCELLED
    assert (
        transition(RunStatus.CANCEL_REQUESTED, RunEvent.FINISHED_COMPLETED, cancel_requested=False)
        is RunStatus.CANCELLED
    ), "the status alone says it too"


def test_a_failure_under_cancel_stays_a_failure() -> None:
    """Protocol, section 2: `cancel_requested → cancelled | failed`; what really happened is not painted over."""
    for event in (RunEvent.FINISHED_FAILED, RunEvent.LEASE_EXPIRED):
        assert transition(RunStatus.CANCEL_REQUESTED, event, cancel_requested=True) is RunStatus.FAILED
    assert transition(RunStatus.RECOVERING, RunEvent.VERDICT_FAILED, cancel_requested=True) is RunStatus.FAILED


def test_release() -> None:
    """Proves: H-05 (the machine's part). Back to the queue, cancelled where that was asked, failed after the last."""
    assert transition(RunStatus.RUNNING, RunEvent.RELEASED, cancel_requested=False) is RunStatus.PENDING
    assert transition(RunStatus.CANCEL_REQUESTED, RunEvent.RELEASED, cancel_requested=True) is RunStatus.CANCELLED
    assert transition(RunStatus.RUNNING, RunEvent.RELEASES_EXHAUSTED, cancel_requested=False) is RunStatus.FAILED
    for status in set(RunStatus) - LEASED:
        assert isinstance(transition(status, RunEvent.RELEASED, cancel_requested=False), Refused)


def test_recovering_and_interrupted_keep_their_state_under_cancel() -> None:
    """Protocol, section 2: a recovering run keeps its state; cancelling an interrupted run ends its input only."""
    for status in (RunStatus.RECOVERING, RunStatus.INTERRUPTED, RunStatus.CANCEL_REQUESTED):
        assert transition(status, RunEvent.CANCEL_REQUESTED, cancel_requested=False) is status
    for status in (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED):
        assert isinstance(transition(status, RunEvent.CANCEL_REQUESTED, cancel_requested=False), Refused)


@pytest.mark.parametrize("event", [event for event in RunEvent if event.value.startswith("finished")])
def test_recovering_is_closed_to_workers(event: RunEvent) -> None:
    """Protocol, section 2: only the verdict ends a recovering run."""
    assert isinstance(transition(RunStatus.RECOVERING, event, cancel_requested=False), Refused)


def test_sets_cover_every_status_once() -> None:
    """Terminal, live and pending are a partition; leased is a part of live."""
    assert TERMINAL | LIVE | {RunStatus.PENDING} == set(RunStatus)
    assert not TERMINAL & LIVE
    assert LEASED < LIVE


DELIVERY = {
    # status: (not admitted, admitted and nothing known, admitted and written, admitted and not written)
    RunStatus.PENDING: ("queued",) * 4,
    RunStatus.RUNNING: ("delivering", "delivering", "delivered", "delivering"),
    RunStatus.CANCEL_REQUESTED: ("delivering", "delivering", "delivered", "delivering"),
    RunStatus.RECOVERING: ("delivering", "delivering", "delivered", "delivering"),
    RunStatus.COMPLETED: ("delivered",) * 4,
    RunStatus.INTERRUPTED: ("delivered",) * 4,
    RunStatus.FAILED: ("not_delivered", "unknown", "delivered", "not_delivered"),
    RunStatus.CANCELLED: ("not_delivered", "unknown", "delivered", "not_delivered"),
}


@pytest.mark.parametrize("status", list(RunStatus))
def test_delivery_follows_the_run(status: RunStatus) -> None:
    """Proves: A-05 (the mapping). Nothing is guessed: admitted without evidence is unknown once the run has ended."""
    answers = (
        delivery_of(status, admitted=False),
        delivery_of(status, admitted=True),
        delivery_of(status, admitted=True, written=True),
        delivery_of(status, admitted=True, written=False),
    )
    assert answers == tuple(DeliveryStatus(text) for text in DELIVERY[status])


def test_an_unread_admission_is_unknown() -> None:
    """R-02: an admission that was asked for and never answered may have been committed."""
    assert delivery_of(RunStatus.FAILED, admitted=None) is DeliveryStatus.UNKNOWN
