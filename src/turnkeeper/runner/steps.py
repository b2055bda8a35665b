"""Steps 4 to 8 of a turn: from the claim to the admission (protocol.md section 4).

Nothing here reaches the agent's conversation: whatever fails up to the end of `admit` leaves a turn that was never
delivered, and raises `TurnFailed`, `Halted` or `LeaseLost`. `Progress` says how far it came, for whoever cleans up.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from turnkeeper.client.http import CallError, ClientError
from turnkeeper.client.provisioner import Manager
from turnkeeper.domain.errors import ErrorCode, InvariantViolation, ProblemCode
from turnkeeper.domain.lease import cancel_lead
from turnkeeper.runner.calls import ONE_TRY, Patience, is_tried_again
from turnkeeper.runner.failure import Failure, Halted, Stage, TurnFailed, code_of, failure_of, failure_of_agent
from turnkeeper.runner.flags import Flag
from turnkeeper.runner.heartbeat import note_control_failure
from turnkeeper.runner.worker import Beside, Worker
from turnkeeper.wire.canonical import canonical_sha256
from turnkeeper.wire.provisioner import Sandbox
from turnkeeper.wire.sandbox import OpenSession, RecordedSession, Setup, SetupResult, Take
from turnkeeper.wire.worker import ActivateAnswer, ExecutionSpec, RecordedInstance

ENSURE_TIMEOUT_S: Final = 120.0
"""A cold start may have to pull an image."""
MARK_TIMEOUT_S: Final = 5.0
_MARK_AGE_MAX_S: Final = 1.0
_CALL_MARGIN_S: Final = 10.0
_INSTANCE_ENDED_CODES: Final = frozenset({"generation", "boot_id", "retired", ProblemCode.GENERATION_MISMATCH.value})
_WORKDIR_CODES: Final = frozenset({ProblemCode.INVALID_WORKDIR.value, ProblemCode.BAD_REQUEST.value})


class Admission(StrEnum):
    """What is known of the admission. `requested`: the control plane may have recorded it (R-02)."""

    NONE = "none"
    REQUESTED = "requested"
    CONFIRMED = "confirmed"


@dataclass
class Progress:
    """How far the turn came; written by the main thread alone."""

    stage: Stage = Stage.PREPARE
    spec: ExecutionSpec | None = None
    sandbox: Sandbox | None = None
    activation: ActivateAnswer | None = None
    manager: Manager | None = None
    take_sent: bool = False
    admission: Admission = Admission.NONE
    native_session: str | None = None


def prepare(worker: Worker, progress: Progress, worker_name: str) -> ExecutionSpec:
    """Step 4: acceptance on record, and the execution spec."""
    progress.stage = Stage.PREPARE
    try:
        spec = worker.calls.carry_out(
            "prepare", lambda: worker.control.prepare(worker_name), Patience.for_preparation(worker.timing)
        )
    except CallError as error:
        raise TurnFailed(failure_of(error, _prepare_code(error), Stage.PREPARE)) from error
    progress.spec = spec
    return spec


def _prepare_code(error: CallError) -> ErrorCode:
    """A run that must not be executed is refused with the code that it ends with (T-05)."""
    return code_of(error.code if isinstance(error, ClientError) else None, ErrorCode.PREPARATION_FAILED)


def enter(worker: Worker, progress: Progress, spec: ExecutionSpec) -> Manager:
    """Steps 4 (manifest), 5 and 6: the exact sandbox, the activation and the barrier.

    A take that is refused because the instance has ended repeats 5 and 6 once.
    """
    manifest = Beside(lambda: _record_manifest(worker, spec))
    try:
        sandbox, found_at = _ensure(worker, progress, spec)
    finally:
        _join_manifest(manifest, progress)
    for repeated in (False, True):
        _record_container(worker, progress, spec, sandbox)
        mark_ms = _fresh_mark(worker, spec, sandbox, found_at)
        activation = _activate(worker, progress, sandbox)
        manager = worker.manager(spec, sandbox, activation)
        progress.manager = manager
        try:
            _take(worker, progress, manager, sandbox, mark_ms)
        except CallError as error:
            if repeated or not _may_have_ended(error):
                raise TurnFailed(failure_of(error, ErrorCode.SANDBOX_UNAVAILABLE, Stage.TAKE)) from error
            sandbox, found_at = _ensure(worker, progress, spec)
            continue
        worker.feed_with(worker.manager(spec, sandbox, activation), mark_ms)
        return manager
    raise InvariantViolation("the second take neither succeeded nor failed")


def _record_manifest(worker: Worker, spec: ExecutionSpec) -> None:
    digest = canonical_sha256(spec.manifest)
    worker.calls.carry_out(
        "manifest", lambda: worker.control.manifest(spec.manifest, digest), Patience.for_preparation(worker.timing)
    )


def _join_manifest(manifest: "Beside[None]", progress: Progress) -> None:
    try:
        manifest.result()
    except (CallError, ValueError) as error:
        progress.stage = Stage.MANIFEST
        if isinstance(error, CallError):
            failure = failure_of(error, ErrorCode.MANIFEST_PERSIST_FAILED, Stage.MANIFEST)
        else:
            failure = Failure(ErrorCode.MANIFEST_PERSIST_FAILED, Stage.MANIFEST.value, exception=type(error).__name__)
        raise TurnFailed(failure) from error


def _ensure(worker: Worker, progress: Progress, spec: ExecutionSpec) -> tuple[Sandbox, float]:
    """The sandbox, and when it was found."""
    progress.stage = Stage.SANDBOX
    pauses_s = iter(Patience.for_preparation(worker.timing).pauses_s)
    while True:
        try:
            progress.sandbox = sandbox = _find_or_create(worker, spec)
            return sandbox, worker.clock.monotonic()
        except CallError as error:
            pause_s = next(pauses_s, None)
            if pause_s is None or not is_tried_again(error):
                raise TurnFailed(failure_of(error, _ensure_code(error), Stage.SANDBOX)) from error
            note_control_failure(worker.log, "ensure", error)
        worker.clock.wait(worker.flags.lost_event, pause_s)


def _find_or_create(worker: Worker, spec: ExecutionSpec) -> Sandbox:
    provisioner = worker.provisioner(spec)
    try:
        return worker.interruptible(
            lambda: provisioner.ensure(spec.ensure, timeout_s=ENSURE_TIMEOUT_S), provisioner.interrupt
        )
    finally:
        provisioner.close()


def _ensure_code(error: CallError) -> ErrorCode:
    code = error.code if isinstance(error, ClientError) else ""
    if code == ProblemCode.AGENT_UNAVAILABLE.value:
        return ErrorCode.AGENT_START_FAILED  # its command is not on this machine
    return ErrorCode.PREPARATION_FAILED if code in _WORKDIR_CODES else ErrorCode.SANDBOX_UNAVAILABLE


def _record_container(worker: Worker, progress: Progress, spec: ExecutionSpec, sandbox: Sandbox) -> None:
    """Step 5: the exact instance goes on record. One that is there is not recorded again: nothing would change, each turn
    would wait for it, and `activate` compares with the record in any case."""
    found = RecordedInstance(sandbox_id=sandbox.sandbox_id, generation=sandbox.generation, boot_id=sandbox.boot_id)
    if found == spec.recorded:
        return
    progress.stage = Stage.CONTAINER
    try:
        worker.calls.carry_out(
            "container",
            lambda: worker.control.container(
                sandbox_id=found.sandbox_id, generation=found.generation, boot_id=found.boot_id
            ),
            Patience.for_preparation(worker.timing),
        )
    except CallError as error:
        raise TurnFailed(failure_of(error, ErrorCode.PREPARATION_FAILED, Stage.CONTAINER)) from error


def _fresh_mark(worker: Worker, spec: ExecutionSpec, sandbox: Sandbox, found_at: float) -> int:
    """A mark from before `activate` is sent. The one that came with the sandbox will do while it is young: an older mark
    only makes the switch fire earlier, but a whole lease should be ahead of the turn."""
    if worker.clock.monotonic() - found_at < _MARK_AGE_MAX_S:
        return sandbox.mark_ms
    manager = worker.manager(spec, sandbox, None)
    try:
        return worker.interruptible(lambda: manager.mark(timeout_s=MARK_TIMEOUT_S), manager.interrupt).mark_ms
    except CallError as error:
        note_control_failure(worker.log, "mark", error)
        return sandbox.mark_ms
    finally:
        manager.close()


def _activate(worker: Worker, progress: Progress, sandbox: Sandbox) -> ActivateAnswer:
    progress.stage = Stage.ACTIVATE
    worker.check()
    # Of several sends the first may be the one that renewed the lease, so the lease is counted from there (L-06).
    sent_at = worker.clock.monotonic()
    try:
        activation = worker.calls.carry_out(
            "activate",
            lambda: worker.control.activate(generation=sandbox.generation, boot_id=sandbox.boot_id),
            Patience.for_preparation(worker.timing),
        )
    except CallError as error:
        raise TurnFailed(failure_of(error, ErrorCode.PREPARATION_FAILED, Stage.ACTIVATE)) from error
    progress.activation = activation
    worker.lease.confirm(sent_at, activation.lease_ttl_s)
    return activation


def _take(worker: Worker, progress: Progress, manager: Manager, sandbox: Sandbox, mark_ms: int) -> None:
    progress.stage = Stage.TAKE
    timing = worker.timing
    request = Take(
        mark_ms=mark_ms,
        lease_ttl_ms=int(timing.lease_ttl_s * 1000),
        cancel_lead_ms=int(cancel_lead(timing) * 1000),
        home=sandbox.home,
    )
    worker.check()
    progress.take_sent = True
    worker.undisturbed(lambda: manager.take(request, timeout_s=timing.barrier_s + _CALL_MARGIN_S), manager.interrupt)


def _may_have_ended(error: CallError) -> bool:
    """Whether the instance may be gone; then finding or creating it again is harmless, and decides."""
    if not isinstance(error, ClientError):
        return True
    return error.status in (404, 410, 502, 503, 504) or error.code in _INSTANCE_ENDED_CODES


def set_up(worker: Worker, progress: Progress, spec: ExecutionSpec) -> None:
    """Step 7, first half: the setup commands of the agent definition."""
    if not spec.setup:
        return
    progress.stage = Stage.SETUP
    manager, sandbox = _entered(progress)
    request = Setup(commands=spec.setup, cwd=sandbox.cwd, home=sandbox.home, env=spec.env, secrets=spec.secrets)
    timeout_s = sum(command.timeout_s for command in spec.setup) + _CALL_MARGIN_S
    try:
        answer = worker.interruptible(lambda: manager.setup(request, timeout_s=timeout_s), manager.interrupt)
    except CallError as error:
        raise TurnFailed(failure_of(error, ErrorCode.PREPARATION_FAILED, Stage.SETUP)) from error
    if not answer.ok:
        raise TurnFailed(_setup_failure(answer.results))


def _setup_failure(results: tuple[SetupResult, ...]) -> Failure:
    failed = next((one for one in reversed(results) if one.exit != 0 or one.timed_out), None)
    if failed is None:
        return Failure(ErrorCode.PREPARATION_FAILED, Stage.SETUP.value)
    how = "ran out of time" if failed.timed_out else f"ended with {failed.exit}"
    return Failure(
        ErrorCode.PREPARATION_FAILED,
        Stage.SETUP.value,
        exit=failed.exit,
        stderr_tail=failed.output_tail or None,
        text=f"setup command {failed.command[0]!r} {how}",
    )


def open_session(worker: Worker, progress: Progress, spec: ExecutionSpec) -> str:
    """Step 7, second half: the native session, opened, continued or reloaded. Returns its id."""
    progress.stage = Stage.SESSION
    manager, sandbox = _entered(progress)
    facts = spec.membership
    request = OpenSession(
        command=spec.command,
        cwd=sandbox.cwd,
        home=sandbox.home,
        env=spec.env,
        secrets=spec.secrets,
        recorded=RecordedSession(
            native_session=facts.native_session,
            native_turn=facts.native_turn,
            settled_generation=facts.settled_generation,
            settled_boot_id=facts.settled_boot_id,
            agent_pid=facts.agent_pid,
            agent_start_ticks=facts.agent_start_ticks,
        ),
        new_session_per_turn=spec.new_session_per_turn,
        keep_background_processes=spec.keep_background_processes,
        permission_rules=spec.permission_rules,
        timeout_s=spec.session_timeout_s,
    )
    timeout_s = spec.session_timeout_s + worker.timing.barrier_s + _CALL_MARGIN_S
    try:
        answer = worker.interruptible(lambda: manager.session(request, timeout_s=timeout_s), manager.interrupt)
    except CallError as error:
        raise TurnFailed(failure_of(error, ErrorCode.SANDBOX_UNAVAILABLE, Stage.SESSION)) from error
    if answer.failure is not None:
        raise TurnFailed(failure_of_agent(answer.failure, "no"))
    if answer.native_session is None:
        raise TurnFailed(Failure(ErrorCode.AGENT_PROTOCOL_ERROR, Stage.SESSION.value))
    progress.native_session = answer.native_session
    return answer.native_session


def admit(worker: Worker, progress: Progress, native_session: str) -> None:
    """Step 8 (F-04). A cancel does not cut it: an admission without an answer may cost the conversation."""
    progress.stage = Stage.ADMIT
    activation = progress.activation
    if activation is None:
        raise InvariantViolation("admission without an activation")
    worker.check()
    timing = worker.timing
    progress.admission = Admission.REQUESTED
    try:
        worker.calls.carry_out(
            "admit",
            lambda: worker.control.admit(
                activation=activation.activation,
                fence=activation.fence,
                native_session=native_session,
                timeout_s=timing.receipt_timeout_s,
            ),
            Patience.for_receipts(timing),
        )
    except CallError as error:
        if isinstance(error, ClientError) and error.status < 500 and not is_tried_again(error):
            progress.admission = Admission.NONE  # a final answer: nothing was recorded
            _look_for_cancel(worker, error)
        raise TurnFailed(failure_of(error, ErrorCode.ADMISSION_REFUSED, Stage.ADMIT)) from error
    progress.admission = Admission.CONFIRMED


def _look_for_cancel(worker: Worker, refusal: ClientError) -> None:
    """A cancel is the usual reason for a refusal, and may not have been heard of yet. Raises `Halted` for it."""
    worker.check()
    if refusal.extra.get("why") == "cancelled":
        raise Halted(Flag.CANCELLED)
    try:
        signals = worker.calls.carry_out("signals", lambda: worker.control.signals(0), ONE_TRY)
    except CallError:
        return
    if signals.cancel_requested:
        raise Halted(Flag.CANCELLED)


def _entered(progress: Progress) -> tuple[Manager, Sandbox]:
    if progress.manager is None or progress.sandbox is None:
        raise InvariantViolation("no sandbox was entered")
    return progress.manager, progress.sandbox


def with_new_client(worker: Worker, progress: Progress) -> Manager | None:
    """A manager client that nothing has interrupted; None where no activation was given."""
    if progress.spec is None or progress.sandbox is None or progress.activation is None:
        return None
    progress.manager = worker.manager(progress.spec, progress.sandbox, progress.activation)
    return progress.manager
