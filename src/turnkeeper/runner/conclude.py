"""Steps 11 to 13, and the end of a turn that failed.

Every path that leaves a turn comes through here: the receipt taken to the control plane, or the turn stopped, and where
nothing was admitted abandoned; then the report. Uploading an event and sending `finish` do not depend on each other
(F-01). Nothing is written after the lease is lost (F-02, F-03).
"""

from dataclasses import dataclass
from typing import Final

from turnkeeper.client.control import FinishStatus
from turnkeeper.client.http import CallError, ClientError
from turnkeeper.domain.errors import ErrorCode, sentence
from turnkeeper.runner.calls import Patience
from turnkeeper.runner.failure import TEXT_CHARS_MAX, Failure, LeaseLost, Stage, TurnFailed, code_of, failure_of
from turnkeeper.runner.flags import Flag
from turnkeeper.runner.heartbeat import exception_name, note_control_failure
from turnkeeper.runner.pump import EventPump
from turnkeeper.runner.steps import Admission, Progress, with_new_client
from turnkeeper.runner.worker import EXIT_DONE, EXIT_NO_WORD, Worker
from turnkeeper.wire.provisioner import SnapshotRequest
from turnkeeper.wire.sandbox import Evidence
from turnkeeper.wire.turn import EventKind, Outcome, SettlementReceipt, SnapshotResult
from turnkeeper.wire.worker import SettleAnswer, TurnEvent

STOP_TIMEOUT_S: Final = 10.0
"""The manager shows death within 5 s or ends the sandbox."""
SNAPSHOT_TIMEOUT_S: Final = 30.0
"""Above the 20 s that a snapshot may take, so that its own answer is the one that counts."""
EVENT_TIMEOUT_S: Final = 10.0
_STOP_TRIES: Final = 3
_OVER_STATUSES: Final = frozenset({404, 409, 410})


@dataclass(frozen=True)
class Stopped:
    """`dead`: every process of the turn was seen dead, or its sandbox has ended. `evidence` is the manager's word."""

    dead: bool
    evidence: Evidence | None = None


class Conclusion:
    """The end of one turn; in the main thread. `pump` None: no event stream was opened."""

    def __init__(self, worker: Worker, progress: Progress, pump: EventPump | None) -> None:
        self._worker = worker
        self._progress = progress
        self._pump = pump

    def settle(self, receipt: SettlementReceipt, *, halted: Flag | None = None) -> int:
        """Take the receipt to the control plane and end the run by it; returns the exit status of the worker.

        `halted` says what the worker had asked the agent to end for. Raises `LeaseLost`, or `TurnFailed` where the
        receipt could not be recorded.
        """
        self._progress.stage = Stage.SETTLE
        settled = self._record(receipt)
        snapshot = self._snapshot(settled)
        self._flush(self._worker.timing.control_timeout_s)
        self._add_event(
            EventKind.SHARED_WORKSPACE_SETTLED,
            {
                "epoch": settled.epoch,
                "native_turn": settled.native_turn,
                "native_session": receipt.native_session,
            },
        )
        status, failure = _outcome(receipt, halted)
        return self._finish(status, failure, snapshot)

    def fail(self, failure: Failure) -> int:
        """Stop the turn, give the membership back where nothing was admitted, and report. Raises `LeaseLost`."""
        return self._end(failure, "failed", None)

    def halt(self, flag: Flag) -> int:
        """End a turn that ran out of time or was cancelled and is not settled. Raises `LeaseLost`."""
        delivered = "yes" if self._progress.admission is Admission.CONFIRMED else "no"
        code = ErrorCode.EXECUTION_TIMEOUT if flag is Flag.TIMED_OUT else ErrorCode.CANCELLED
        status: FinishStatus = "failed" if flag is Flag.TIMED_OUT else "cancelled"
        return self._end(Failure(code, self._progress.stage.value, delivered), status, flag)

    def lost(self) -> int:
        """The lease is lost: the agent is stopped, and nothing is written to the control plane (L-05, L-06)."""
        if self._progress.take_sent:
            self._stop()
        return EXIT_NO_WORD

    def _end(self, failure: Failure, status: FinishStatus, flag: Flag | None) -> int:
        stopped = self._stop() if self._progress.take_sent else Stopped(dead=True)
        evidence = stopped.evidence
        if self._progress.admission is Admission.CONFIRMED and evidence is not None:
            if evidence.receipt is not None:  # it had settled before it was stopped
                return self.settle(evidence.receipt, halted=flag)
            failure = failure.at("yes" if evidence.prompt_written else "no")
        if failure.code is not ErrorCode.SESSION_UNAVAILABLE:
            # Given back, a membership whose session is gone would fail the next turn again: `finish` ends it (section 7).
            self._abandon(stopped)
        if self._pump is not None:
            self._flush(self._worker.timing.control_timeout_s / 3)
        self._report(failure)
        return self._finish(status, failure, None)

    def report_unsettled(self, failure: Failure) -> int:
        """End a turn whose receipt could not be recorded: quarantined, for a verdict to say what it was."""
        self._report(failure)
        return self._finish("failed", failure, None)

    def _record(self, receipt: SettlementReceipt) -> SettleAnswer:
        activation = self._progress.activation
        fits = activation is not None and (
            receipt.activation == activation.activation
            and receipt.fence == activation.fence
            and receipt.run == self._worker.claim.job
        )
        if activation is None or not fits:
            raise TurnFailed(Failure(ErrorCode.SETTLEMENT_FAILED, Stage.SETTLE.value, "yes"))
        timing = self._worker.timing
        try:
            return self._worker.calls.carry_out(
                "settle",
                lambda: self._worker.control.settle(
                    activation=activation.activation,
                    fence=activation.fence,
                    receipt=receipt,
                    timeout_s=timing.receipt_timeout_s,
                ),
                Patience.for_receipts(timing),
            )
        except CallError as error:
            raise TurnFailed(failure_of(error, ErrorCode.SETTLEMENT_FAILED, Stage.SETTLE, "yes")) from error

    def _snapshot(self, settled: SettleAnswer) -> SnapshotResult | None:
        """Step 12: bounded, and whatever happens to it never fails the turn (D-08)."""
        spec, sandbox = self._progress.spec, self._progress.sandbox
        if spec is None or sandbox is None or not spec.snapshot:
            return None
        provisioner = self._worker.provisioner(spec)
        request = SnapshotRequest(workdir=spec.ensure.workdir, epoch=settled.epoch)
        alarm = self._worker.watchdog.at(
            self._worker.clock.monotonic() + SNAPSHOT_TIMEOUT_S, provisioner.interrupt
        )  # also where the answer trickles
        try:
            return self._worker.undisturbed(
                lambda: provisioner.snapshot(
                    sandbox.sandbox_id, sandbox.generation, request, timeout_s=SNAPSHOT_TIMEOUT_S
                ),
                provisioner.interrupt,
            )
        except CallError as error:
            name = exception_name(error)
            note_control_failure(self._worker.log, "snapshot", error)
            return SnapshotResult(unavailable_why=f"the provisioner did not answer ({name})")
        finally:
            alarm.cancel()
            provisioner.close()

    def _stop(self) -> Stopped:
        """Ask the manager to end the turn, under our own token. A lost lease does not cut this."""
        for _ in range(_STOP_TRIES):
            manager = with_new_client(self._worker, self._progress)
            if manager is None:
                return Stopped(dead=True)
            worker = self._worker
            alarm = worker.watchdog.at(worker.clock.monotonic() + STOP_TIMEOUT_S, manager.interrupt)
            try:
                return Stopped(dead=True, evidence=manager.stop(timeout_s=STOP_TIMEOUT_S).evidence)
            except ClientError as error:
                if error.status in _OVER_STATUSES:
                    # The instance has ended, nothing was taken under this token, or a newer activation's take has
                    # already seen everything of this one dead.
                    return Stopped(dead=True)
                self._note("stop", error)
            except CallError as error:
                self._note("stop", error)
            finally:
                alarm.cancel()
                manager.close()
            self._worker.clock.wait(self._worker.flags.lost_event, self._worker.timing.heartbeat_retry_delay_s / 5)
        return Stopped(dead=False)

    def _abandon(self, stopped: Stopped) -> None:
        """Give the membership back. Only after the stop was answered; unanswered, the membership is quarantined.

        An admission that was asked for and not answered may have been recorded: the statement itself looks (R-02).
        """
        activation = self._progress.activation
        if activation is None or not stopped.dead or self._progress.admission is Admission.CONFIRMED:
            return
        try:
            self._worker.calls.carry_out(
                "abandon",
                lambda: self._worker.control.abandon(activation=activation.activation, fence=activation.fence),
                Patience.for_preparation(self._worker.timing),
            )
        except CallError:
            return  # it was logged; `finish` settles what becomes of the membership

    def _flush(self, timeout_s: float) -> None:
        if self._pump is not None and not self._pump.flush(timeout_s) and not self._worker.flags.lost:
            self._worker.log.warning("agent_events_not_stored")

    def _report(self, failure: Failure) -> None:
        data: dict[str, object] = {
            "code": failure.code.value,
            "stage": failure.stage,
            "delivered": failure.delivered,
            "text": sentence(failure.code),
        }
        if failure.refusal:
            data["refusal"] = failure.refusal
        if failure.text:
            data["detail"] = failure.text[:TEXT_CHARS_MAX]
        self._add_event(EventKind.ERROR, data)

    def _add_event(self, kind: EventKind, data: dict[str, object]) -> None:
        """One try: whether it is stored changes nothing (F-01, F-03)."""
        if self._worker.flags.lost:
            raise LeaseLost
        try:
            if self._pump is not None:
                self._pump.add_own(kind, data)
            else:  # nothing was read of the manager's stream: this is the first event of the attempt
                self._worker.control.events((TurnEvent(n=1, kind=kind, data=data),), timeout_s=EVENT_TIMEOUT_S)
        except CallError as error:
            self._note(kind.value, error)

    def _finish(self, status: FinishStatus, failure: Failure | None, snapshot: SnapshotResult | None) -> int:
        self._progress.stage = Stage.FINISH
        report = None if failure is None else failure.report()
        worker = self._worker

        def send() -> None:
            with worker.lease.finishing():
                worker.control.finish(status, failure=report, snapshot=snapshot)

        try:
            worker.calls.carry_out("finish", send, Patience.for_the_end(worker.timing))
        except CallError:
            return EXIT_NO_WORD  # the reaper ends the run
        return EXIT_DONE

    def _note(self, operation: str, error: CallError) -> None:
        note_control_failure(self._worker.log, operation, error)


def _outcome(receipt: SettlementReceipt, halted: Flag | None) -> tuple[FinishStatus, Failure | None]:
    """What the run's end will say. What counts is what the control plane has recorded of the receipt."""
    if halted is Flag.TIMED_OUT and receipt.outcome is not Outcome.COMPLETED:
        return "failed", Failure(ErrorCode.EXECUTION_TIMEOUT, Stage.PROMPT.value, "yes")
    if receipt.outcome is Outcome.COMPLETED:
        return "completed", None
    if receipt.outcome is Outcome.SUSPENDED:
        return "interrupted", None
    if receipt.outcome is Outcome.CANCELLED and receipt.error_code is None:
        return "cancelled", Failure(ErrorCode.CANCELLED, Stage.PROMPT.value, "yes")
    code = code_of(receipt.error_code, ErrorCode.AGENT_PROTOCOL_ERROR)
    return "failed", Failure(code, Stage.PROMPT.value, "yes", text=receipt.error_text)
