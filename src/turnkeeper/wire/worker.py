"""Worker API, `/v1/agent/worker/…`: what a host and a worker say to the control plane.

Host token: `work`, `claim`. Worker token (per attempt): all of `jobs/<job>/…`. Unknown token 401, another job's 403, no such job 404,
lease refused 409, gone for good 410. Every write names the lease generation; the token names the attempt (L-11).
"""

from typing import Any, Literal

from pydantic import Field

from turnkeeper.wire.base import Answer, Id, Moment, Request
from turnkeeper.wire.provisioner import EnsureRequest
from turnkeeper.wire.sandbox import PermissionRule, SetupCommand
from turnkeeper.wire.turn import EventKind, SettlementReceipt, SnapshotResult

WORK_WAIT_S_MAX = 25


class Work(Answer):
    """`GET work?wait=25&incarnation=…`: only *maybe*. `maybe` false means that the wait passed without a sign of work."""

    maybe: bool


class ClaimRequest(Request):
    """`POST claim`. The same claim id from the same incarnation, before acceptance, returns the same attempt with a fresh token (D-05).

    `rooms` is how many more trees this host has room for; with 0 only runs of trees that it already holds are given.
    """

    claim_id: Id
    incarnation: Id
    rooms: int = Field(ge=0)
    lease_ttl_s: int | None = Field(default=None, gt=0)


class Claim(Answer):
    """One attempt. The lease is counted from the first *send* of the claim."""

    job: Id
    attempt: Id
    attempt_no: int
    lease_generation: int
    worker_token: str = Field(repr=False)
    lease_ttl_s: int
    execution_timeout_s: int
    thread_id: Id
    root_run_id: Id
    kind: Literal["chat", "resume", "subagent"]
    agent: str


class ClaimAnswer(Answer):
    """`claim` is None when nothing could be claimed; `more` then says that ready rows exist (repeat within 2 s)."""

    claim: Claim | None = None
    more: bool = False


class JobRequest(Request):
    """What every write of a worker carries."""

    lease_generation: int


class Heartbeat(JobRequest):
    """`POST jobs/<job>/heartbeat`: a renewal. Idempotent."""


class HeartbeatAnswer(Answer):
    lease_ttl_s: int
    lease_expires_at: Moment
    cancel_requested: bool = False


class Release(JobRequest):
    """`POST jobs/<job>/release`, by the host: the child provably never took the turn (H-02). `why` is one of the three proofs."""

    why: Literal["not_created", "not_delivered", "not_accepted"]
    detail: str = Field(default="", max_length=500)


class Prepare(JobRequest):
    """`POST jobs/<job>/prepare`: records acceptance, re-checks shape and ownership (T-05)."""

    worker: str = Field(max_length=200, description="host/pid/start ticks of the child")


class MembershipFacts(Answer):
    """The recorded evidence by which a native session may be continued or reloaded (R-07)."""

    membership: Id
    native_session: str | None
    native_turn: int
    settled_generation: str | None
    settled_boot_id: str | None
    agent_pid: int | None
    agent_start_ticks: int | None


class RecordedInstance(Answer):
    """The exact sandbox instance that the scope's row names."""

    sandbox_id: str
    generation: str
    boot_id: str


class ExecutionSpec(Answer):
    """All that a worker needs to run the turn. Secrets are names only; the provisioner holds their values."""

    job: Id
    thread_id: Id
    uid: Id
    scope: Id
    kind: Literal["chat", "resume", "subagent"]
    agent: str
    provisioner_url: str | None = None
    provisioner_token: str = Field(repr=False)
    ensure: EnsureRequest
    membership: MembershipFacts
    recorded: RecordedInstance | None = None
    """What an earlier turn recorded: if it is found again, `container` has nothing to add."""
    command: tuple[str, ...]
    env: dict[str, str] = {}
    secrets: tuple[str, ...] = ()
    setup: tuple[SetupCommand, ...] = ()
    permission_rules: tuple[PermissionRule, ...] = ()
    new_session_per_turn: bool = False
    keep_background_processes: bool = False
    session_timeout_s: int = 60
    execution_deadline: Moment
    execution_timeout_s: int
    prompt: str
    manifest: dict[str, Any]
    snapshot: bool = True


class Manifest(JobRequest):
    """`POST jobs/<job>/manifest`, once (A-02): the run manifest and its SHA-256 over canonical JSON."""

    manifest: dict[str, Any]
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class ManifestAnswer(Answer):
    sha256: str


class Container(JobRequest):
    """`POST jobs/<job>/container`: the exact sandbox that was found or created."""

    sandbox_id: str = Field(max_length=100)
    generation: str = Field(max_length=200)
    boot_id: str = Field(max_length=100)


class Activate(JobRequest):
    """`POST jobs/<job>/activate`: raises the membership fence and renews the lease. The same request again: the same answer."""

    generation: str = Field(max_length=200)
    boot_id: str = Field(max_length=100)


class ActivateAnswer(Answer):
    activation: Id
    membership: Id
    fence: int
    activation_token: str = Field(repr=False)
    lease_ttl_s: int


class ActivationRequest(JobRequest):
    activation: Id
    fence: int


class Admit(ActivationRequest):
    """`POST jobs/<job>/admit` (F-04): the durable fact that this run may have reached the agent."""

    native_session: str = Field(max_length=1000)


class AdmissionReceipt(Answer):
    activation: Id
    job: Id
    fence: int
    admitted_at: Moment


class Settle(ActivationRequest):
    """`POST jobs/<job>/settle`: the supervisor's receipt, taken to the control plane (F-04, F-06)."""

    receipt: SettlementReceipt


class SettleAnswer(Answer):
    activation: Id
    native_turn: int
    epoch: int
    settled_at: Moment


class Abandon(ActivationRequest):
    """`POST jobs/<job>/abandon`: only where nothing was admitted (R-02). Sent after `stop` was answered."""


class TurnEvent(Request):
    """One event of the manager's stream, under its number."""

    n: int = Field(gt=0)
    kind: EventKind
    data: dict[str, Any]
    original_bytes: int | None = None


class EventBatch(JobRequest):
    """`POST jobs/<job>/events`: consecutive events from `first` on. A number that is stored already is skipped, a gap refused (422)."""

    first: int = Field(gt=0)
    events: tuple[TurnEvent, ...] = Field(min_length=1, max_length=1000)


class EventBatchAnswer(Answer):
    next: int


class FailureReport(Request):
    """What the worker knows about a failure; no URL, token, body or exception text (E-02).

    `refusal` is the stable code of the problem with which the product's own control plane or provisioner refused a step;
    `text` is then that problem's one line.
    """

    code: str = Field(max_length=100)
    stage: str = Field(max_length=100)
    delivered: Literal["no", "yes", "unknown"]
    exception: str | None = Field(default=None, max_length=200)
    http_status: int | None = None
    refusal: str | None = Field(default=None, max_length=100)
    exit_code: int | None = None
    exit_signal: int | None = None
    stderr_tail: str | None = Field(default=None, max_length=65536)
    text: str | None = Field(default=None, max_length=4000)


class Finish(JobRequest):
    """`POST jobs/<job>/finish`: ends the run. What ended is decided by the stored facts: a settled activation gives its own outcome."""

    status: Literal["completed", "failed", "cancelled", "interrupted"]
    failure: FailureReport | None = None
    snapshot: SnapshotResult | None = None


class FinishAnswer(Answer):
    status: str


class Signals(Answer):
    """`GET jobs/<job>/signals?wait=25`: a hint (T-03). `ended` means that this attempt is no longer the run's holder."""

    cancel_requested: bool = False
    ended: bool = False
