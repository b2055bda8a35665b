"""Provisioner API, `/v1/…`: bearer on every route but `/livez`. The control plane's administrative token may do everything (K-01), a
signed attempt token what its verbs say, in its own scope.

    POST   /v1/sandboxes/ensure                                find or create
    GET    /v1/sandboxes                                       inventory (administrative)
    GET    /v1/sandboxes/{sandbox_id}                          one lookup, four answers (K-05)
    POST   /v1/sandboxes/{sandbox_id}/{generation}/touch
    DELETE /v1/sandboxes/{sandbox_id}                          If-Match: "<generation>" or ?lease_generation=N (K-03); absent is success
    POST   /v1/sandboxes/{sandbox_id}/{generation}/snapshot    SnapshotRequest -> turn.SnapshotResult
    POST   /v1/commands/check                                  CommandQuestion -> CommandAnswer (administrative)
    ANY    /v1/sandboxes/{sandbox_id}/{generation}/manager/{path}   proxy to the manager, streaming both ways; other generation: 409

Through the proxy a worker sends its provisioner token as `Authorization` and its activation token as `X-Turnkeeper-Activation`; the
proxy replaces `Authorization` by the per-sandbox secret.
"""

from typing import Literal

from pydantic import Field

from turnkeeper.wire.base import Answer, Id, Moment, Request

ACTIVATION_HEADER = "X-Turnkeeper-Activation"


class SkillRef(Request):
    name: str
    content_hash: str


class SandboxSpec(Request):
    """The parts of an agent definition that shape the sandbox. A live sandbox with another shape is refused (K-02), never rebound."""

    network: Literal["none", "host"] = "none"
    programs: tuple[str, ...] = Field(
        default=(), description="absolute paths bound read-only, besides system and product"
    )
    image: str | None = None


class EnsureRequest(Request):
    """`POST /v1/sandboxes/ensure`. Materialises Workdir, HOME of the thread and skill projection, then finds or creates the sandbox."""

    uid: Id
    scope: Id
    thread_id: Id
    workdir: str
    lease_generation: int
    spec: SandboxSpec = SandboxSpec()
    secrets: tuple[str, ...] = Field(
        default=(), description="names; values are the provisioner's and go to the manager's memory only"
    )
    skills: tuple[SkillRef, ...] = ()
    idle_timeout_s: int | None = Field(default=None, gt=0)


class Sandbox(Answer):
    """One exact, answering sandbox. `mark_ms` is a reading of the manager's own suspend-proof clock. `cwd` and `home` are paths inside."""

    sandbox_id: str
    generation: str
    boot_id: str
    mark_ms: int
    created: bool
    cwd: str
    home: str


class SandboxRecord(Answer):
    """A row of the inventory, and the answer to a lookup (K-05): `running`, `exited` (with cause), `absent`, `unknown` (with why)."""

    sandbox_id: str
    state: Literal["running", "exited", "absent", "unknown"]
    generation: str | None = None
    uid: Id | None = None
    scope: Id | None = None
    workdir: str | None = None
    why: str | None = None
    created_at: Moment | None = None


class CommandQuestion(Request):
    """`POST /v1/commands/check` (administrative): would an agent's program be found in a sandbox of this provisioner, and have
    the secrets that it names values?"""

    command: str = Field(max_length=5000, description="the first word of the agent's command")
    programs: tuple[str, ...] = Field(default=(), max_length=100)
    secrets: tuple[str, ...] = Field(default=(), max_length=100, description="names")


class CommandAnswer(Answer):
    """`missing`: one line saying which program is not there; None where it would be found. `secrets`: the same for the secrets."""

    missing: str | None = None
    secrets: str | None = None


class DeleteAnswer(Answer):
    """`absent`: there was nothing (success)."""

    state: Literal["deleted", "absent"]


class SnapshotRequest(Request):
    """`epoch` names the settlement that the snapshot belongs to; the same epoch again gives the stored answer."""

    workdir: str
    epoch: int = Field(gt=0)
