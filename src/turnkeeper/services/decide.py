"""What a turn's end is, from the stored facts (protocol 4). Pure.

A worker's word decides only where the facts leave it open: a settled activation gives its own outcome, and nothing that
was not settled is ever `completed`.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from turnkeeper.domain.errors import ErrorCode
from turnkeeper.domain.membership import ActivationState
from turnkeeper.domain.run import RunEvent
from turnkeeper.wire.turn import Outcome


class Word(StrEnum):
    """Who says that the turn is over."""

    WORKER = "worker"
    """The lease holder itself."""
    LEASE_EXPIRED = "lease_expired"
    """Nobody renewed: the reaper."""
    CHILD_GONE = "child_gone"
    """The host found its child gone, by pid and start time."""


class Move(StrEnum):
    """What becomes of the membership."""

    KEEP = "keep"
    """This attempt has no activation that is current: nothing to do."""
    FREE = "free"
    """Settled: idle again."""
    QUARANTINE = "quarantine"
    LOSE = "lose"
    """The session is not available, and nothing was admitted: lost at once (protocol 7)."""


@dataclass(frozen=True)
class TurnFacts:
    """The current activation of this attempt (None: there is none), what was settled in it, and what the worker says."""

    word: Word
    activation: ActivationState | None
    outcome: Outcome | None
    settled_error: ErrorCode | None
    final_message: str
    cancel_requested: bool
    claimed_status: str | None = None
    claimed_code: ErrorCode | None = None


@dataclass(frozen=True)
class TurnEnd:
    """The event that ends the run, its code, and what becomes of membership and output."""

    event: RunEvent
    code: ErrorCode | None
    move: Move
    settled: bool


def decide_end(facts: TurnFacts) -> TurnEnd:
    """The end of a turn."""
    match facts.activation:
        case ActivationState.SETTLED:
            event, code = _settled(facts)
            return TurnEnd(event, code, Move.FREE, settled=True)
        case ActivationState.ADMITTED:
            event, code = _unsettled(facts, ErrorCode.OUTCOME_UNKNOWN)
            return TurnEnd(event, code, Move.QUARANTINE, settled=False)
        case ActivationState.PREPARING:
            event, code = _unsettled(facts, ErrorCode.PREPARATION_FAILED)
            lost = facts.word is Word.WORKER and facts.claimed_code is ErrorCode.SESSION_UNAVAILABLE
            if lost and event is RunEvent.FINISHED_FAILED:
                code = ErrorCode.SESSION_UNAVAILABLE
            return TurnEnd(event, code, Move.LOSE if lost else Move.QUARANTINE, settled=False)
        case None | ActivationState.ABANDONED:
            event, code = _unsettled(facts, ErrorCode.PREPARATION_FAILED)
            return TurnEnd(event, code, Move.KEEP, settled=False)
        case ActivationState.QUARANTINED | ActivationState.NOT_DELIVERED | ActivationState.LOST:
            # Somebody else (an operator's force) has taken the membership from this turn; its end changes the run alone.
            event, code = _unsettled(facts, ErrorCode.OUTCOME_UNKNOWN)
            return TurnEnd(event, code, Move.KEEP, settled=False)
        case _:
            assert_never(facts.activation)


def _settled(facts: TurnFacts) -> tuple[RunEvent, ErrorCode | None]:
    match facts.outcome:
        case Outcome.COMPLETED:
            if facts.final_message.strip():
                return RunEvent.FINISHED_COMPLETED, None
            if facts.cancel_requested:
                return RunEvent.FINISHED_CANCELLED, ErrorCode.CANCELLED
            return RunEvent.FINISHED_FAILED, ErrorCode.NO_OUTPUT
        case Outcome.CANCELLED:
            # The agent acknowledged a cancel. Whether the owner had asked for it or a timeout did, the worker knows.
            if facts.cancel_requested or facts.claimed_code is None or facts.claimed_code is ErrorCode.CANCELLED:
                return RunEvent.FINISHED_CANCELLED, ErrorCode.CANCELLED
            return RunEvent.FINISHED_FAILED, facts.claimed_code
        case Outcome.FAILED | Outcome.SUSPENDED | None:
            code = facts.settled_error or facts.claimed_code or ErrorCode.AGENT_PROTOCOL_ERROR
            return RunEvent.FINISHED_FAILED, code
        case _:
            assert_never(facts.outcome)


def _unsettled(facts: TurnFacts, otherwise: ErrorCode) -> tuple[RunEvent, ErrorCode]:
    if facts.word is not Word.WORKER:
        # One code for every attempt that ended without its own word; how that was found, the attempt's outcome and the
        # detail keep apart (E-06).
        admitted = facts.activation is ActivationState.ADMITTED
        code = ErrorCode.OUTCOME_UNKNOWN if admitted else ErrorCode.WORKER_LEASE_EXPIRED
        return RunEvent.LEASE_EXPIRED, code
    if facts.cancel_requested and facts.claimed_status != "completed":
        return RunEvent.FINISHED_CANCELLED, ErrorCode.CANCELLED
    if facts.claimed_status == "completed":
        return RunEvent.FINISHED_FAILED, facts.claimed_code or ErrorCode.SETTLEMENT_FAILED
    return RunEvent.FINISHED_FAILED, facts.claimed_code or otherwise
