"""Owner API, `/v1/…`. Creating POSTs take an `Idempotency-Key`; lists are pages with an opaque cursor; errors are problems.

POST/GET        /v1/conversations                GET/DELETE /v1/conversations/{thread_id}
POST/GET        /v1/conversations/{thread_id}/messages
GET             /v1/conversations/{thread_id}/events       SSE of the conversation (does not end)
GET             /v1/conversations/{thread_id}/runs         GET /v1/runs
GET             /v1/runs/{run_id}                POST /v1/runs/{run_id}/cancel
GET             /v1/runs/{run_id}/events         SSE of one run, ends after its `end`; `Accept: application/json`: one page of Events
GET             /v1/agents, /v1/agents/{name}    PUT/DELETE /v1/agents/{name} (admin)
POST/GET        /v1/keys                         DELETE /v1/keys/{id}
GET/PATCH       /v1/me
GET             /v1/admin/servers                POST /v1/admin/users, GET /v1/admin/users
POST/GET/DELETE /v1/admin/hosts/{name}/tokens    DELETE /v1/admin/hosts/{name}/tokens/{id}
"""

from typing import Any, Literal

from pydantic import Field

from turnkeeper.wire.base import Answer, Id, Moment, Request
from turnkeeper.wire.turn import ChangeSummary

PAGE_SIZE_DEFAULT = 50
PAGE_SIZE_MAX = 200


def session_cookie(host: str) -> str:
    """The name of the pages' session cookie, which may also read `/v1/…`, at the address `host` (the header's value).

    It holds the port, because browsers share the cookies of one host among all its ports.
    """
    port = host.rpartition(":")[2]
    return f"turnkeeper_{port}" if port.isascii() and port.isdigit() and len(port) < 6 else "turnkeeper"


class NewConversation(Request):
    """`workdir` absent: a fresh directory named by the thread id."""

    agent: str = Field(max_length=200)
    workdir: str | None = Field(default=None, max_length=5000)
    title: str = Field(default="", max_length=1000)


class Conversation(Answer):
    thread_id: Id
    agent: str
    title: str
    workdir: str
    state: Literal["open", "lost", "closed"]
    queue_paused: bool
    kind: Literal["chat", "subagent"]
    lost_text: str | None = None
    native_turn: int = 0
    epoch: int = 0
    live_run_id: Id | None = None
    created_at: Moment
    updated_at: Moment


class NewMessage(Request):
    text: str


class Message(Answer):
    id: Id
    thread_id: Id
    run_id: Id
    role: Literal["owner", "assistant", "system"]
    text: str
    delivery: Literal["queued", "delivering", "delivered", "not_delivered", "unknown"] | None = None
    created_at: Moment


class AttemptRecord(Answer):
    """One ownership of a run. `left_events`: its worker has stored events of its own; only then did anything of it run."""

    attempt_no: int
    lease_generation: int
    lease_owner: str
    host: str
    claimed_at: Moment
    accepted_at: Moment | None
    last_heartbeat_at: Moment | None
    lease_expires_at: Moment
    ended_at: Moment | None
    outcome: str | None
    left_events: bool


class RunSnapshot(Answer):
    epoch: int
    tree_id: str | None
    unavailable_why: str | None
    changes: ChangeSummary | None


class Run(Answer):
    id: Id
    thread_id: Id
    agent: str
    kind: Literal["chat", "resume", "subagent"]
    status: Literal[
        "pending", "running", "cancel_requested", "recovering", "completed", "failed", "cancelled", "interrupted"
    ]
    ready: bool = False
    error_code: str | None = None
    error_text: str | None = None
    error_detail: dict[str, Any] | None = None
    native_turn: int | None = None
    epoch: int | None = None
    cancel_requested_at: Moment | None = None
    created_at: Moment
    started_at: Moment | None = None
    ended_at: Moment | None = None


class RunDetail(Run):
    """One run with its attempts, manifest digest and snapshot."""

    prompt: str
    output: str | None = None
    manifest_sha256: str | None = None
    attempts: tuple[AttemptRecord, ...] = ()
    snapshot: RunSnapshot | None = None


class Submitted(Answer):
    message: Message
    run: Run


class Agent(Answer):
    """`unavailable`: one line saying what is missing; `install` the command that installs it."""

    name: str
    title: str
    network: str
    runtime_policy: str
    available: bool
    unavailable: str | None = None
    install: str | None = None
    definition: dict[str, Any] | None = None


class NewKey(Request):
    name: str = Field(min_length=1, max_length=200)


class Key(Answer):
    id: Id
    name: str
    shown_prefix: str
    created_at: Moment
    last_used_at: Moment | None = None
    revoked_at: Moment | None = None


class CreatedKey(Key):
    """The only time that the key itself is shown."""

    key: str = Field(repr=False)


class LoginLink(Answer):
    """Opens one browser session, once. `path` belongs behind the address by which the page is reached."""

    path: str = Field(repr=False)
    expires_in_s: int


class Me(Answer):
    uid: Id
    name: str
    role: Literal["owner", "admin"]
    language: Literal["en", "zh"]


class MePatch(Request):
    language: Literal["en", "zh"]


class Server(Answer):
    """A host as operators see it (Admin → Servers)."""

    name: str
    state: Literal["ready", "backing_off", "draining", "gone"]
    launch_error: str | None
    version: str
    capacity: int
    live_trees: int
    provisioner: str
    last_heartbeat_at: Moment


class HostToken(Answer):
    """What opens the worker API for one host."""

    id: Id
    host: str
    created_at: Moment
    revoked_at: Moment | None = None


class CreatedHostToken(HostToken):
    """The only time that the token itself is shown."""

    token: str = Field(repr=False)


class NewUser(Request):
    name: str = Field(max_length=200)
    role: Literal["owner", "admin"] = "owner"
    language: Literal["en", "zh"] = "en"


class Page(Answer):
    """`next` None: the last page."""

    items: tuple[dict[str, Any], ...]
    next: str | None = None
