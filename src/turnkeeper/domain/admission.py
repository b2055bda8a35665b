"""How a turn gets its native session: continue it, reload it, open a new one, or none of these (R-07; protocol.md, 7).

A container that still exists proves nothing about the session in it. Continuation needs exact evidence: same generation,
boot id, agent process, native session and native turn. The one other way is to load a stored session into a new process,
and only if its last turn is settled, no question is open, and the supervisor's journal equals what the database recorded.
Everything else is `Unavailable`, which makes the membership LOST.
"""

from dataclasses import dataclass
from enum import StrEnum

from turnkeeper.domain.membership import MembershipState


@dataclass(frozen=True)
class RecordedSession:
    """What the database holds about a membership: its state before this activation and its last settled boundary.

    `native_session` is None before a session was ever opened; `pid` and `start_ticks` are None where no settlement named
    the agent's process.
    """

    state: MembershipState
    generation: str | None
    boot_id: str | None
    native_session: str | None
    native_turn: int
    pid: int | None = None
    start_ticks: int | None = None


@dataclass(frozen=True)
class LiveSession:
    """What the sandbox manager holds right now, in the instance that the turn will use."""

    generation: str
    boot_id: str
    native_session: str
    native_turn: int
    pid: int
    start_ticks: int
    suspended: bool = False


@dataclass(frozen=True)
class Journal:
    """What the supervisor's journal in the session's HOME says: the last turn begun and the last one settled."""

    native_session: str
    begun: int
    settled: int
    suspended: bool = False


@dataclass(frozen=True)
class JournalUnknown:
    """The journal could not be read for a reason that may pass. Not the same as *no journal*."""

    why: str


@dataclass(frozen=True)
class Capabilities:
    """What the agent offers. `resume`: `session/resume` that does not replay; `load`: `session/load`."""

    load: bool = False
    resume: bool = False


@dataclass(frozen=True)
class OpenNew:
    """Open a new native session; native turns count from 0."""


@dataclass(frozen=True)
class Continue:
    """Carry on in the same process."""

    native_session: str
    native_turn: int


class ReloadMethod(StrEnum):
    """How a stored session is loaded."""

    RESUME = "resume"
    LOAD = "load"


@dataclass(frozen=True)
class Reload:
    """Load the stored session into a new process, with the original absolute cwd and a deadline."""

    native_session: str
    native_turn: int
    method: ReloadMethod


class UnavailableReason(StrEnum):
    """Why the conversation cannot go on."""

    MEMBERSHIP_NOT_USABLE = "membership_not_usable"
    """Quarantined or lost, or in use by another run."""
    SUSPENDED_PROCESS_GONE = "suspended_process_gone"
    """A question is open, and the process that asked it is not there: never loaded."""
    TURN_MISMATCH = "turn_mismatch"
    """The supervisor counts other turns than the database."""
    JOURNAL_MISSING = "journal_missing"
    JOURNAL_UNKNOWN = "journal_unknown"
    JOURNAL_MISMATCH = "journal_mismatch"
    """The journal is of another session or counts other turns."""
    TURN_CUT = "turn_cut"
    """A turn was begun and never settled: loading could run it again."""
    NOT_LOADABLE = "not_loadable"
    """The agent offers neither load nor resume."""


@dataclass(frozen=True)
class Unavailable:
    """`session_unavailable`, and the membership is LOST."""

    reason: UnavailableReason


SessionDecision = OpenNew | Continue | Reload | Unavailable
"""The four ways."""


def decide_session(
    recorded: RecordedSession | None,
    live: LiveSession | None,
    journal: Journal | JournalUnknown | None,
    capabilities: Capabilities,
    *,
    new_session_per_turn: bool = False,
) -> SessionDecision:
    """How to get the session for the next turn. `recorded` is None where the conversation has no membership yet.

    `journal` is None where there is none, which includes anything that is not a well-formed regular file.
    """
    if recorded is None:
        return OpenNew()
    if recorded.state is MembershipState.SUSPENDED:
        if live is not None and live.suspended and _is_exactly(recorded, live):
            return Continue(live.native_session, live.native_turn)
        return Unavailable(UnavailableReason.SUSPENDED_PROCESS_GONE)
    if recorded.state is not MembershipState.IDLE:
        return Unavailable(UnavailableReason.MEMBERSHIP_NOT_USABLE)
    if new_session_per_turn or recorded.native_session is None:
        return OpenNew()
    if live is not None and _is_same_process(recorded, live):
        if live.native_turn != recorded.native_turn or live.suspended:
            return Unavailable(UnavailableReason.TURN_MISMATCH)
        return Continue(live.native_session, live.native_turn)
    return _decide_reload(recorded, recorded.native_session, journal, capabilities)


def _decide_reload(
    recorded: RecordedSession,
    native_session: str,
    journal: Journal | JournalUnknown | None,
    capabilities: Capabilities,
) -> SessionDecision:
    if isinstance(journal, JournalUnknown):
        return Unavailable(UnavailableReason.JOURNAL_UNKNOWN)
    if recorded.native_turn == 0 and (journal is None or journal.begun == 0):
        return OpenNew()  # nothing was ever said in it, and most agents cannot load such a session
    if journal is None:
        return Unavailable(UnavailableReason.JOURNAL_MISSING)
    if journal.begun != journal.settled or journal.suspended:
        return Unavailable(UnavailableReason.TURN_CUT)
    if journal.native_session != native_session or journal.settled != recorded.native_turn:
        return Unavailable(UnavailableReason.JOURNAL_MISMATCH)
    if capabilities.resume:
        return Reload(native_session, recorded.native_turn, ReloadMethod.RESUME)
    if capabilities.load:
        return Reload(native_session, recorded.native_turn, ReloadMethod.LOAD)
    return Unavailable(UnavailableReason.NOT_LOADABLE)


def _is_same_process(recorded: RecordedSession, live: LiveSession) -> bool:
    return (
        recorded.generation == live.generation
        and recorded.boot_id == live.boot_id
        and recorded.native_session == live.native_session
        and recorded.pid == live.pid
        and recorded.start_ticks == live.start_ticks
    )


def _is_exactly(recorded: RecordedSession, live: LiveSession) -> bool:
    return _is_same_process(recorded, live) and recorded.native_turn == live.native_turn
