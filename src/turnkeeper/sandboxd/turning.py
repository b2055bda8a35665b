"""The end of a turn: settled by its response, whatever it says, or failed by the agent's end (protocol.md 4, step 11)."""

import asyncio
from dataclasses import dataclass
from typing import Final

from turnkeeper.domain.errors import ErrorCode
from turnkeeper.kit import failpoint
from turnkeeper.kit import text as hygiene
from turnkeeper.kit.failpoint import Point
from turnkeeper.kit.log import get_logger
from turnkeeper.kit.stop import Deadline
from turnkeeper.sandboxd.activation import FAILURE_CODES, Activation, Membership
from turnkeeper.sandboxd.agent import Agent
from turnkeeper.sandboxd.deadman import DeadMansSwitches
from turnkeeper.sandboxd.journal import JournalWriteError, SessionJournal
from turnkeeper.sandboxd.rpc import AgentGoneError, AgentRefusedError, Answer, Answered
from turnkeeper.sandboxd.turn import Turn, outcome_of
from turnkeeper.sandboxd.updates import word
from turnkeeper.wire.sandbox import AgentFailure
from turnkeeper.wire.turn import Outcome, SettlementReceipt

_log = get_logger("sandboxd.turn")
_KILL_S: Final = 5.0
_LEFTOVERS_S: Final = 1.0


@dataclass(frozen=True)
class _Verdict:
    """How the agent's answer is told."""

    outcome: Outcome
    stop_reason: str
    error_code: str | None = None
    error_text: str | None = None


@dataclass
class TurnEnding:
    """Concludes one turn. `on_answer` runs in the very step that read the response: what comes after it is not of this turn."""

    boot_id: str
    switches: DeadMansSwitches
    membership: Membership
    activation: Activation
    agent: Agent
    turn: Turn
    journal: SessionJournal

    def on_answer(self, answer: Answer) -> None:
        """The response came, or the agent went without one."""
        message, message_bytes = self.turn.close()
        if self.activation.deadline is not None:
            self.activation.deadline.cancel()
        match answer:
            case Answered(result):
                verdict = self._told(word(result.get("stopReason")))
            case AgentRefusedError():
                text = hygiene.cut(str(answer), 4096)[0]
                verdict = _Verdict(Outcome.FAILED, "error", ErrorCode.AGENT_PROTOCOL_ERROR, text)
            case AgentGoneError():
                self.activation.ending = asyncio.create_task(self._fail())
                return
        self.agent.answered = True
        self.switches.disarm(self.activation.switch)  # what runs now is an idle agent, which may stay
        self.membership.publish_mortal()
        self.activation.ending = asyncio.create_task(self._to_its_end(verdict, message, message_bytes))

    def _told(self, stop_reason: str) -> _Verdict:
        reason = hygiene.cut(stop_reason, 200)[0] or "none"
        outcome = outcome_of(reason)
        if outcome is Outcome.CANCELLED and self.activation.cancel_code is not None:
            return _Verdict(outcome, reason, self.activation.cancel_code, "the manager cancelled the turn")
        return _Verdict(outcome, reason)

    async def _to_its_end(self, verdict: _Verdict, message: str, message_bytes: int | None) -> None:
        """Whatever goes wrong on the way, the stream gets its last line: nobody waits for a turn that is over."""
        try:
            await self._settle(verdict, message, message_bytes)
        except Exception as error:
            _log.exception("settlement_broke", activation=self.activation.claims.activation)
            if self.activation.log.finished:
                return
            if self.activation.receipt is not None:
                self.activation.log.finish(receipt=self.activation.receipt)
                return
            self.agent.answered = False  # as above
            await self._conclude_failed(ErrorCode.SETTLEMENT_FAILED, type(error).__name__)

    async def _settle(self, verdict: _Verdict, message: str, message_bytes: int | None) -> None:
        native_turn = self.agent.native_turn + 1
        activation, claims = self.activation, self.activation.claims
        try:
            await asyncio.to_thread(self.journal.settled, native_turn, claims.activation, self.agent.native_session)
        except JournalWriteError as error:
            self.agent.answered = False  # its boundary is on no record: it must not be carried on
            await self._conclude_failed(ErrorCode.SETTLEMENT_FAILED, str(error))
            return
        self.agent.native_turn = native_turn
        activation.receipt = SettlementReceipt(
            activation=claims.activation,
            run=claims.sub,
            fence=claims.fence,
            boot_id=self.boot_id,
            native_session=self.agent.native_session,
            native_turn=native_turn,
            outcome=verdict.outcome,
            stop_reason=verdict.stop_reason,
            error_code=verdict.error_code,
            error_text=verdict.error_text,
            final_message=message,
            final_message_bytes=message_bytes,
            last_event=activation.log.next_n - 1,
            agent=self.agent.identity,
        )
        if not self.agent.spec.keep_background_processes:
            await self.agent.keeper.kill_leftovers(Deadline.after(_LEFTOVERS_S))
        failpoint.before(Point.EFFECT_RECEIPT)
        activation.log.finish(receipt=activation.receipt)
        failpoint.after(Point.EFFECT_RECEIPT)
        _log.info("turn_settled", activation=claims.activation, native_turn=native_turn, outcome=verdict.outcome.value)

    async def _fail(self) -> None:
        await self._conclude_failed(ErrorCode.AGENT_EXITED, "")

    def fail_unwritten(self) -> None:
        """The agent had gone before the prompt could be written: the stream tells how it left."""
        self.agent.stage = "prompt"
        text = "the agent had gone before the prompt was written"
        self.activation.ending = asyncio.create_task(self._conclude_failed(ErrorCode.AGENT_EXITED, text))

    async def _conclude_failed(self, code: str, text: str) -> None:
        ended = self.activation.end_code
        failure = await self.agent.failure(FAILURE_CODES[ended] if ended else code, text)
        self.activation.log.finish(failure=failure)
        self.switches.disarm(self.activation.switch)
        await self.agent.kill(Deadline.after(_KILL_S))
        _log.warning("turn_failed", activation=self.activation.claims.activation, code=failure.code, exit=failure.exit)

    @staticmethod
    def unprompted(activation: Activation) -> AgentFailure:
        """The last word on an activation that was ended while no prompt was open."""
        code = activation.end_code or "stopped"
        stage = "prompt" if activation.prompt_written else "start"
        return AgentFailure(code=FAILURE_CODES[code], stage=stage, text=f"the activation was ended: {code}")
