"""One turn, from the acceptance to its end: the main thread's path through protocol.md section 4.

The steps raise how they end (`failure`); every end goes through `conclude`. Exactly one of its methods is the last thing
that happens, and it is called with what is known by then.
"""

from collections.abc import Callable
from functools import partial
from typing import assert_never

from turnkeeper.domain.errors import ErrorCode, InvariantViolation
from turnkeeper.kit.clock import system_clock
from turnkeeper.kit.log import Logger
from turnkeeper.runner.conclude import Conclusion
from turnkeeper.runner.failure import Failure, Halted, LeaseLost, Stage, TurnFailed
from turnkeeper.runner.follow import Follow, OutOfTime, Settled, Unsettled, send_prompt
from turnkeeper.runner.pump import EventPump
from turnkeeper.runner.steps import Admission, Progress, admit, enter, open_session, prepare, set_up
from turnkeeper.runner.worker import Worker
from turnkeeper.wire.worker import ExecutionSpec


class Turn:
    """Carries out the turn of one `Worker`. `worker_name`: host/pid/start ticks."""

    def __init__(self, worker: Worker, worker_name: str, log: Logger) -> None:
        self._worker = worker
        self._name = worker_name
        self._log = log
        self._progress = Progress()
        self._pump: EventPump | None = None

    def run(self) -> int:
        """Returns the worker's exit status. The lease is held to the end, then everything is stopped (L-10)."""
        self._worker.start()
        try:
            code = self._to_the_end()
        finally:
            if self._pump is not None:
                self._pump.stop()
            self._worker.stop()
        self._log.info("agent_attempt_ended", exit_status=code, verdict=self._worker.lease.verdict)
        return code

    def _to_the_end(self) -> int:
        try:
            try:
                return self._carry_out()
            except TurnFailed as failed:
                self._note_failure(failed.failure)
                how = partial(Conclusion.fail, failure=failed.failure)
            except Halted as halted:
                self._log.info("agent_turn_halted", flag=halted.flag.value, stage=self._progress.stage.value)
                how = partial(Conclusion.halt, flag=halted.flag)
            except (LeaseLost, InvariantViolation):
                raise
            except Exception as error:  # a defect of ours must not leave the run to the reaper (F-02)
                self._log.exception("agent_turn_broke", stage=self._progress.stage.value)
                how = partial(Conclusion.fail, failure=self._broken(error))
            return self._concluded(self._conclusion(), how)
        except LeaseLost:
            self._log.warning("agent_turn_lost", stage=self._progress.stage.value, verdict=self._worker.lease.verdict)
            return self._conclusion().lost()

    def _carry_out(self) -> int:
        worker, progress = self._worker, self._progress
        spec = prepare(worker, progress, self._name)
        manager = enter(worker, progress, spec)
        set_up(worker, progress, spec)
        pump = self._new_pump(spec)
        native_session = open_session(worker, progress, spec)
        admit(worker, progress, native_session)
        progress.stage = Stage.PROMPT
        answered = send_prompt(worker, manager, spec)
        pump.start()
        end = Follow(worker, manager, pump, answered=answered).to_the_end()
        match end:
            case Settled(receipt, asked):
                return self._concluded(self._conclusion(), partial(Conclusion.settle, receipt=receipt, halted=asked))
            case Unsettled(failure, asked):
                if asked is None:
                    raise TurnFailed(failure)
                self._note_failure(failure)
                raise Halted(asked)
            case OutOfTime(flag):
                raise Halted(flag)
            case _:
                assert_never(end)

    def _concluded(self, conclusion: Conclusion, how: Callable[[Conclusion], int]) -> int:
        try:
            return how(conclusion)
        except TurnFailed as failed:  # the receipt could not be recorded
            self._note_failure(failed.failure)
            return conclusion.report_unsettled(failed.failure)

    def _new_pump(self, spec: ExecutionSpec) -> EventPump:
        """It begins to read when the prompt is out: its first call would compete with the opening of the session."""
        worker, progress = self._worker, self._progress
        sandbox, activation = progress.sandbox, progress.activation
        if sandbox is None or activation is None:
            raise InvariantViolation("a session is open without an activation")
        self._pump = EventPump(
            lambda: worker.manager(spec, sandbox, activation),
            worker.control,
            system_clock,  # the pace of batches is no part of the protocol's time
            self._log,
            timeout_s=worker.timing.receipt_timeout_s,
            may_write=worker.lease.look,
            on_news=worker.flags.nudge,
            on_refused=worker.heartbeats.hurry,
        )
        return self._pump

    def _conclusion(self) -> Conclusion:
        return Conclusion(self._worker, self._progress, self._pump)

    def _broken(self, error: Exception) -> Failure:
        before = self._progress.admission is Admission.NONE
        return Failure(
            ErrorCode.PREPARATION_FAILED if before else ErrorCode.OUTCOME_UNKNOWN,
            self._progress.stage.value,
            "no" if before else "unknown",
            exception=type(error).__name__,
        )

    def _note_failure(self, failure: Failure) -> None:
        self._log.warning(
            "agent_turn_failed",
            code=failure.code.value,
            stage=failure.stage,
            delivered=failure.delivered,
            exception_class=failure.exception,
            http_status=failure.http_status,
            refusal=failure.refusal,
        )
