"""The execution spec and the run manifest: all that a worker needs, and the record of it (A-02).

Prompts and secrets are in the manifest as digests or names only. The provisioner's token is valid until the attempt's
execution deadline, for this attempt and scope alone.
"""

import hashlib
import math
from typing import Any

from turnkeeper.domain.agent import AgentDefinition, RuntimePolicy
from turnkeeper.services.context import Services
from turnkeeper.services.leased import Leased
from turnkeeper.store import runs
from turnkeeper.store.conversations import ConversationRow
from turnkeeper.store.memberships import MembershipRow
from turnkeeper.store.tx import Tx
from turnkeeper.store.workspaces import WorkspaceRow
from turnkeeper.wire.provisioner import EnsureRequest, SandboxSpec
from turnkeeper.wire.sandbox import PermissionRule, SetupCommand
from turnkeeper.wire.tokens import ProvisionerClaims
from turnkeeper.wire.worker import ExecutionSpec, MembershipFacts, RecordedInstance

MANIFEST_VERSION = 1


async def build_spec(
    s: Services,
    tx: Tx,
    leased: Leased,
    conversation: ConversationRow,
    definition: AgentDefinition,
    definition_sha256: str,
    workspace: WorkspaceRow,
    membership: MembershipRow,
) -> ExecutionSpec:
    """From locked rows; reads the prompt, which is not in them."""
    run, attempt = leased.run, leased.attempt
    prompt = await runs.prompt_of(tx, run.id)
    execution_timeout_s = max(1, int((attempt.execution_deadline - attempt.claimed_at).total_seconds()))
    return ExecutionSpec(
        job=run.id,
        thread_id=run.thread_id,
        uid=run.uid,
        scope=run.runtime_scope_id,
        kind=run.kind,  # type: ignore[arg-type] - the column's CHECK names the same words
        agent=definition.name,
        provisioner_url=s.provisioner_url,
        provisioner_token=s.signer.provisioner_token(
            ProvisionerClaims(
                sub=run.id,
                attempt=attempt.id,
                lease_generation=attempt.lease_generation,
                uid=run.uid,
                scope=run.runtime_scope_id,
                verbs=("ensure", "touch", "proxy", "snapshot"),
                exp=int(attempt.execution_deadline.timestamp()) + 1,
            )
        ),
        ensure=_ensure(s, leased, conversation, definition),
        membership=MembershipFacts(
            membership=membership.id,
            native_session=membership.native_session,
            native_turn=membership.native_turn,
            settled_generation=membership.settled_generation,
            settled_boot_id=membership.settled_boot_id,
            agent_pid=membership.agent_pid,
            agent_start_ticks=membership.agent_start_ticks,
        ),
        recorded=_recorded(workspace),
        command=definition.command,
        env=dict(definition.env),
        secrets=definition.secrets,
        setup=tuple(
            SetupCommand(command=command, timeout_s=max(1, math.ceil(definition.setup_timeout_s)))
            for command in definition.setup
        ),
        permission_rules=tuple(
            PermissionRule(kind=rule.kind, action=rule.action.value) for rule in definition.permissions
        ),
        new_session_per_turn=definition.new_session_per_turn,
        keep_background_processes=definition.keep_background_processes,
        session_timeout_s=max(1, math.ceil(definition.session_timeout_s)),
        execution_deadline=attempt.execution_deadline,
        execution_timeout_s=execution_timeout_s,
        prompt=prompt,
        manifest=_manifest(s, leased, conversation, definition, definition_sha256, workspace, prompt),
    )


def _recorded(workspace: WorkspaceRow) -> RecordedInstance | None:
    if workspace.generation is None or workspace.boot_id is None:
        return None
    return RecordedInstance(sandbox_id=workspace.sandbox_id, generation=workspace.generation, boot_id=workspace.boot_id)


def _ensure(s: Services, leased: Leased, conversation: ConversationRow, definition: AgentDefinition) -> EnsureRequest:
    backstop = s.sandbox_timing.idle_backstop_factor if definition.runtime_policy is RuntimePolicy.RETAINED else 1
    return EnsureRequest(
        uid=leased.run.uid,
        scope=leased.run.runtime_scope_id,
        thread_id=leased.run.thread_id,
        workdir=conversation.workdir,
        lease_generation=leased.attempt.lease_generation,
        spec=SandboxSpec(network=definition.network.value, programs=definition.programs, image=definition.image),
        secrets=definition.secrets,
        idle_timeout_s=s.sandbox_timing.idle_timeout_s * backstop,
    )


def _manifest(
    s: Services,
    leased: Leased,
    conversation: ConversationRow,
    definition: AgentDefinition,
    definition_sha256: str,
    workspace: WorkspaceRow,
    prompt: str,
) -> dict[str, Any]:
    return {
        "version": MANIFEST_VERSION,
        "run": leased.run.id,
        "thread_id": leased.run.thread_id,
        "scope": leased.run.runtime_scope_id,
        "workdir": conversation.workdir,
        "sandbox_id": workspace.sandbox_id,
        "agent": {
            "name": definition.name,
            "definition_sha256": definition_sha256,
            "command": list(definition.command),
            "env": {name: _sha256(value) for name, value in sorted(definition.env.items())},
            "secrets": sorted(definition.secrets),
            "setup": [list(command) for command in definition.setup],
            "network": definition.network.value,
            "programs": list(definition.programs),
            "image": definition.image,
            "runtime_policy": definition.runtime_policy.value,
            "permissions": [[rule.kind, rule.action.value] for rule in definition.permissions],
        },
        "skills": [],
        "prompt": {"sha256": _sha256(prompt), "bytes": len(prompt.encode("utf-8"))},
        "limits": {
            "lease_ttl_s": leased.attempt.lease_ttl_s,
            "event_bytes_max": s.limits.event_bytes_max,
            "turn_events_bytes_max": s.limits.turn_events_bytes_max,
            "frame_bytes_max": s.limits.frame_bytes_max,
            "snapshot_bytes_max": s.limits.snapshot_bytes_max,
            "snapshot_files_max": s.limits.snapshot_files_max,
        },
    }


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
