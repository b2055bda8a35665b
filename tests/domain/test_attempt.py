"""Which outcome closes an attempt with which event of its run."""

from turnkeeper.domain.attempt import AttemptOutcome, outcome_of
from turnkeeper.domain.run import LEASED, TABLE, RunEvent


def test_outcomes_are_the_closed_list() -> None:
    """Proves: A-01 (the outcomes)."""
    assert [outcome.value for outcome in AttemptOutcome] == [
        "completed",
        "failed",
        "cancelled",
        "interrupted",
        "released",
        "lease_expired",
    ]


def test_every_event_that_leaves_the_leased_states_closes_the_attempt() -> None:
    """An attempt is open exactly while its run is leased: who leaves must close, who stays must not."""
    for (state, event), following in TABLE.items():
        leaves = state in LEASED and following not in LEASED
        assert (outcome_of(event) is not None) == leaves, (state, event)


def test_every_outcome_is_reached() -> None:
    """No outcome without an event."""
    assert {outcome_of(event) for event in RunEvent} - {None} == set(AttemptOutcome)
