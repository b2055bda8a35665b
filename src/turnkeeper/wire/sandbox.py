"""Sandbox manager API, spoken through the provisioner's proxy. `Authorization: Bearer <per-sandbox secret>` on every route, and where a
turn acts an activation token in `X-Turnkeeper-Activation` that must carry exactly the current fence of its membership (D-03).

    GET  /v1/state                       StateAnswer                      secret only
    PUT  /v1/secrets                     Secrets                          secret only; kept in memory, given to agent processes that name them
    GET  /v1/snapshot?workdir=…          walk frames (wire.walk)          secret only; ended by any stop or take
    GET  /v1/mark                        Mark                             secret only
    POST /v1/take                        Take -> TakeAnswer               activation token; the barrier
    POST /v1/feed                        Feed -> Mark                     current fence from here on
    POST /v1/setup                       Setup -> SetupAnswer
    POST /v1/session                     OpenSession -> SessionAnswer
    POST /v1/prompt                      Prompt -> PromptAnswer           at most one per activation and per run id
    GET  /v1/events?after=N              NDJSON of TurnLine, held open until the turn is settled or stopped; resumable by number
    GET  /v1/receipt                     turn.SettlementReceipt           404 `not_settled` while there is none
    POST /v1/cancel                      CancelAnswer                     session/cancel; open permissions answered `cancelled`
    POST /v1/stop                        StopAnswer                       answered when every process of the turn is dead

Problems: 401 wrong secret; 403 no or bad activation token; 409 `fence` (older or other fence), `boot_id`, `generation`, `prompt_used`,
`not_taken`; 410 `retired`.
"""

from typing import Any, Literal

from pydantic import Field

from turnkeeper.wire.base import Answer, Id, Request
from turnkeeper.wire.turn import AgentProcess, EventKind, SettlementReceipt


class Mark(Answer):
    """A reading of the manager's own suspend-proof clock, in ms."""

    mark_ms: int
    boot_id: str


class MembershipState(Answer):
    membership: Id
    fence: int
    activation: Id | None
    busy: bool
    native_session: str | None
    agent: AgentProcess | None


class StateAnswer(Answer):
    """`import_ready`: the protocol package is loaded, so that a session opens without paying for it."""

    boot_id: str
    generation: str
    mark_ms: int
    version: str
    import_ready: bool
    memberships: tuple[MembershipState, ...] = ()


class Secrets(Request):
    values: dict[str, str] = Field(repr=False)


class Take(Request):
    """The mark read before `activate` was sent arms the dead-man's switch: it kills at `mark_ms + lease_ttl_ms`."""

    mark_ms: int
    lease_ttl_ms: int = Field(gt=0)
    cancel_lead_ms: int = Field(default=4000, ge=0)
    home: str = Field(description="HOME of this membership's thread, absolute path inside the sandbox")


class Evidence(Answer):
    """What the manager knows of the activation that a take ended, or of a turn that was stopped."""

    activation: Id | None = None
    run: Id | None = None
    prompt_written: bool = False
    receipt: SettlementReceipt | None = None


class TakeAnswer(Answer):
    boot_id: str
    fence: int
    mark_ms: int
    previous: Evidence = Evidence()


class Feed(Request):
    mark_ms: int
    lease_ttl_ms: int = Field(gt=0)


class SetupCommand(Request):
    """A command of the agent definition that runs in the sandbox before the session opens."""

    command: tuple[str, ...] = Field(min_length=1)
    timeout_s: int = Field(default=120, gt=0)


class Setup(Request):
    commands: tuple[SetupCommand, ...]
    cwd: str
    home: str
    env: dict[str, str] = {}
    secrets: tuple[str, ...] = ()


class SetupResult(Answer):
    """`exit` is the wait status: exit code, or minus the signal's number. `timed_out` commands were killed."""

    command: tuple[str, ...]
    exit: int
    timed_out: bool = False
    output_tail: str = ""


class SetupAnswer(Answer):
    ok: bool
    results: tuple[SetupResult, ...]


class RecordedSession(Request):
    """What the control plane recorded at the last settlement (R-07); all None where no turn was settled yet."""

    native_session: str | None = None
    native_turn: int = 0
    settled_generation: str | None = None
    settled_boot_id: str | None = None
    agent_pid: int | None = None
    agent_start_ticks: int | None = None


class PermissionRule(Request):
    """The first rule whose kind equals the tool call's kind (or `*`) answers a permission request; none = reject."""

    kind: str
    action: Literal["allow", "reject"]


class OpenSession(Request):
    """Opens, continues or reloads the native session (§7). `secrets` are names whose values the manager holds."""

    command: tuple[str, ...] = Field(min_length=1)
    cwd: str
    home: str
    env: dict[str, str] = {}
    secrets: tuple[str, ...] = ()
    recorded: RecordedSession = RecordedSession()
    new_session_per_turn: bool = False
    keep_background_processes: bool = False
    permission_rules: tuple[PermissionRule, ...] = ()
    mcp_servers: tuple[dict[str, Any], ...] = ()
    timeout_s: int = Field(default=60, gt=0)


class AgentFailure(Answer):
    """How an agent left or failed: with which stage, wait status and last lines of stderr."""

    code: str
    stage: Literal["start", "initialize", "new", "load", "resume", "prompt", "permission"]
    exit: int | None = Field(
        default=None, description="exit code, or minus the signal's number; None where it still ran"
    )
    stderr_tail: str = ""
    text: str = ""


class SessionAnswer(Answer):
    """`failure` None: the session is open. `mode` says how (R-07)."""

    mode: Literal["new", "continued", "reloaded"] | None = None
    native_session: str | None = None
    native_turn: int = 0
    agent: AgentProcess | None = None
    agent_name: str | None = None
    agent_version: str | None = None
    failure: AgentFailure | None = None


class Prompt(Request):
    run: Id
    text: str
    deadline_s: float | None = Field(default=None, gt=0)


class PromptAnswer(Answer):
    """The prompt was journalled (`begun`, fsynced) and written to the agent. `first` numbers the first event of the turn."""

    first: int


class TurnLine(Answer):
    """A line of the event stream. `n` grows by one from 1 within an activation. The last line of a stream has `last` and says
    how the turn ended: with a receipt (settled), or with a failure (stopped, exited, killed)."""

    n: int
    kind: EventKind | None = None
    data: dict[str, Any] = {}
    original_bytes: int | None = None
    last: bool = False
    receipt: SettlementReceipt | None = None
    failure: AgentFailure | None = None


class CancelAnswer(Answer):
    """`sent` False: there was no open prompt."""

    sent: bool


class StopAnswer(Answer):
    """Every setup command and every process of the turn has been seen dead (an agent whose prompt got its response stays)."""

    evidence: Evidence = Evidence()
