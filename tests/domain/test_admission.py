"""How a session is got: each piece of evidence broken once (R-07)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.domain.admission import (
    Capabilities,
    Continue,
    Journal,
    JournalUnknown,
    LiveSession,
    OpenNew,
    RecordedSession,
    Reload,
    ReloadMethod,
    Unavailable,
    UnavailableReason,
    decide_session,
)
from turnkeeper.domain.membership import MembershipState

RECORDED = RecordedSession(
    state=MembershipState.IDLE,
    generation="gen",
    boot_id="boot",
    native_session="session",
    native_turn=3,
    pid=10,
    start_ticks=100,
)
LIVE = LiveSession(generation="gen", boot_id="boot", native_session="session", native_turn=3, pid=10, start_ticks=100)
JOURNAL = Journal(native_session="session", begun=3, settled=3)
BOTH, LOAD, NEITHER = Capabilities(load=True, resume=True), Capabilities(load=True), Capabilities()


def test_exact_evidence_continues() -> None:
    """Proves: R-07. Generation, boot id, process, native session and native turn all equal: the same process goes on."""
    assert decide_session(RECORDED, LIVE, JOURNAL, NEITHER) == Continue("session", 3)
    assert decide_session(RECORDED, LIVE, None, NEITHER) == Continue("session", 3), "no journal is needed for it"


@pytest.mark.parametrize(
    "live",
    [
        None,
        replace(LIVE, generation="other"),
        replace(LIVE, boot_id="other"),
        replace(LIVE, pid=11),
        replace(LIVE, start_ticks=101),
        replace(LIVE, native_session="other"),
    ],
)
def test_any_other_process_is_never_continued(live: LiveSession | None) -> None:
    """Proves: R-07. A reused pid, another boot or instance is another process: the stored session is loaded, or nothing is."""
    assert decide_session(RECORDED, live, JOURNAL, BOTH) == Reload("session", 3, ReloadMethod.RESUME)
    assert decide_session(RECORDED, live, JOURNAL, LOAD) == Reload("session", 3, ReloadMethod.LOAD)
    assert decide_session(RECORDED, live, JOURNAL, NEITHER) == Unavailable(UnavailableReason.NOT_LOADABLE)
    assert decide_session(RECORDED, live, None, BOTH) == Unavailable(UnavailableReason.JOURNAL_MISSING)


def test_a_supervisor_that_counts_other_turns_is_believed_by_nobody() -> None:
    """Proves: R-07. Same process, other native turn: LOST, also where a journal would fit."""
    for live in (replace(LIVE, native_turn=2), replace(LIVE, native_turn=4), replace(LIVE, suspended=True)):
        assert decide_session(RECORDED, live, JOURNAL, BOTH) == Unavailable(UnavailableReason.TURN_MISMATCH)


@pytest.mark.parametrize(
    ("journal", "reason"),
    [
        (None, UnavailableReason.JOURNAL_MISSING),
        (JournalUnknown("timeout"), UnavailableReason.JOURNAL_UNKNOWN),
        (replace(JOURNAL, begun=4), UnavailableReason.TURN_CUT),
        (replace(JOURNAL, settled=2), UnavailableReason.TURN_CUT),
        (replace(JOURNAL, suspended=True), UnavailableReason.TURN_CUT),
        (replace(JOURNAL, begun=2, settled=2), UnavailableReason.JOURNAL_MISMATCH),
        (replace(JOURNAL, begun=4, settled=4), UnavailableReason.JOURNAL_MISMATCH),
        (replace(JOURNAL, native_session="other"), UnavailableReason.JOURNAL_MISMATCH),
    ],
)
def test_a_journal_that_does_not_equal_the_record(
    journal: Journal | JournalUnknown | None, reason: UnavailableReason
) -> None:
    """Proves: R-07. A cut turn is never loaded; begun and settled must both equal the recorded turn."""
    assert decide_session(RECORDED, None, journal, BOTH) == Unavailable(reason)


def test_a_session_without_a_turn_is_opened_anew() -> None:
    """Protocol, section 7: native turn 0 and no `begun`: most agents cannot load such a session, and nothing is lost."""
    fresh = replace(RECORDED, native_turn=0)
    for journal in (None, Journal("session", 0, 0)):
        assert decide_session(fresh, None, journal, BOTH) == OpenNew()
    assert decide_session(fresh, replace(LIVE, native_turn=0), None, NEITHER) == Continue("session", 0)
    begun = Journal("session", 1, 0)
    assert decide_session(fresh, None, begun, BOTH) == Unavailable(UnavailableReason.TURN_CUT)
    unknown = JournalUnknown("timeout")
    assert decide_session(fresh, None, unknown, BOTH) == Unavailable(UnavailableReason.JOURNAL_UNKNOWN)


def test_the_first_turn_opens_one() -> None:
    """No membership yet, or none whose session was ever opened."""
    assert decide_session(None, None, None, NEITHER) == OpenNew()
    never = RecordedSession(MembershipState.IDLE, None, None, None, 0)
    assert decide_session(never, None, None, NEITHER) == OpenNew()


def test_a_suspended_session_is_continued_or_lost() -> None:
    """Protocol, section 7: a suspended session whose process is gone is never loaded."""
    recorded, live = replace(RECORDED, state=MembershipState.SUSPENDED), replace(LIVE, suspended=True)
    gone = Unavailable(UnavailableReason.SUSPENDED_PROCESS_GONE)
    assert decide_session(recorded, live, None, NEITHER) == Continue("session", 3)
    for other in (None, LIVE, replace(live, pid=11), replace(live, boot_id="other"), replace(live, native_turn=4)):
        assert decide_session(recorded, other, JOURNAL, BOTH) == gone
    assert decide_session(recorded, None, JOURNAL, BOTH, new_session_per_turn=True) == gone


@pytest.mark.parametrize("state", [MembershipState.ACTIVE, MembershipState.QUARANTINED, MembershipState.LOST])
def test_no_other_state_is_usable(state: MembershipState) -> None:
    """Proves: R-05 (the decision). Exact evidence does not help a membership that is lost or under verdict."""
    answer = decide_session(replace(RECORDED, state=state), LIVE, JOURNAL, BOTH, new_session_per_turn=True)
    assert answer == Unavailable(UnavailableReason.MEMBERSHIP_NOT_USABLE)


def test_new_session_per_turn() -> None:
    """An agent that keeps no memory gets a new session each turn, whatever is there."""
    assert decide_session(RECORDED, LIVE, JOURNAL, NEITHER, new_session_per_turn=True) == OpenNew()


@given(
    recorded_turn=st.integers(0, 3),
    live=st.none()
    | st.builds(
        LiveSession,
        generation=st.sampled_from(["gen", "other"]),
        boot_id=st.sampled_from(["boot", "other"]),
        native_session=st.sampled_from(["session", "other"]),
        native_turn=st.integers(0, 3),
        pid=st.sampled_from([10, 11]),
        start_ticks=st.sampled_from([100, 101]),
        suspended=st.booleans(),
    ),
    journal=st.none()
    | st.builds(
        Journal,
        native_session=st.sampled_from(["session", "other"]),
        begun=st.integers(0, 4),
        settled=st.integers(0, 4),
        suspended=st.booleans(),
    ),
    state=st.sampled_from(MembershipState),
    capabilities=st.builds(Capabilities, load=st.booleans(), resume=st.booleans()),
)
def test_no_way_to_a_session_without_its_proof(
    recorded_turn: int,
    live: LiveSession | None,
    journal: Journal | None,
    state: MembershipState,
    capabilities: Capabilities,
) -> None:
    """Proves: R-07. Over all evidence: whoever goes on had exactly the proof that the requirement asks for."""
    recorded = replace(RECORDED, native_turn=recorded_turn, state=state)
    answer = decide_session(recorded, live, journal, capabilities)
    if isinstance(answer, Continue):
        assert live == replace(LIVE, native_turn=recorded_turn, suspended=state is MembershipState.SUSPENDED)
    elif isinstance(answer, Reload):
        assert state is MembershipState.IDLE
        assert journal == Journal("session", recorded_turn, recorded_turn)
        assert capabilities.resume or answer.method is ReloadMethod.LOAD
        assert capabilities.load or answer.method is ReloadMethod.RESUME
    elif isinstance(answer, OpenNew):
        assert state is MembershipState.IDLE
        assert recorded_turn == 0
        assert journal is None or journal.begun == 0
