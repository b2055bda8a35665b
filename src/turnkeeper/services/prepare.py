"""`POST jobs/<job>/prepare`: records acceptance, re-checks shape and ownership, and says what to run (protocol 4, step 4).

Acceptance is recorded under the attempt's row lock, where a release looks for it (H-05). The scope's provisioner is fixed
here, before any call to a sandbox, for good. The same worker asking again gets the same answer.
"""

from turnkeeper.domain.agent import AgentDefinition, parse_definition
from turnkeeper.domain.errors import ErrorCode
from turnkeeper.domain.run import RunKind, RunStatus
from turnkeeper.domain.sandbox import WorkdirRefused, parse_workdir, sandbox_id
from turnkeeper.domain.tree import CreatorFacts, RunShape, ShapeRefused, check_run_scope
from turnkeeper.kit.ids import new_id
from turnkeeper.services.answers import Refused, RefusedWhy, Rejected
from turnkeeper.services.auth import Worker
from turnkeeper.services.context import Services
from turnkeeper.services.leased import Leased, LeaseEnded, lock_leased, refuse, run_leased
from turnkeeper.services.spec import build_spec
from turnkeeper.store import agents, attempts, conversations, hosts, memberships, relations, runs, workspaces
from turnkeeper.store.conversations import ConversationRow
from turnkeeper.store.locks import lock_membership, lock_workspace
from turnkeeper.store.memberships import MembershipRow
from turnkeeper.store.tx import Tx
from turnkeeper.store.workspaces import WorkspaceRow
from turnkeeper.wire.worker import ExecutionSpec, Prepare


async def prepare(s: Services, worker: Worker, request: Prepare) -> ExecutionSpec | Refused | Rejected:
    """The execution spec. `Rejected`: the worker finishes the run as failed with that code, without executing anything."""

    async def work(tx: Tx) -> ExecutionSpec | Refused | Rejected:
        leased = await lock_leased(tx, worker, request.lease_generation)
        if isinstance(leased, Refused):
            return leased
        if leased.run.status != RunStatus.RUNNING:
            return await refuse(tx, leased, Refused(RefusedWhy.CANCELLED, "the run was asked to stop"))
        if not await attempts.accept(tx, leased.lease, request.worker):
            return await refuse(tx, leased, Refused(RefusedWhy.ACCEPTED, "another worker has taken this turn"))
        conversation = await conversations.get_conversation(tx, leased.run.thread_id)
        if conversation is None:
            return Rejected(ErrorCode.INVALID_RUNTIME_SCOPE, "the run's conversation does not exist")
        rejected = await _check_scope(tx, leased, conversation)
        if rejected is not None:
            return rejected
        definition = await _definition(tx, leased)
        if isinstance(definition, Rejected):
            return definition
        place = await _place(tx, worker, leased, conversation)
        if isinstance(place, Rejected | Refused):
            return place
        workspace, membership = place
        return await build_spec(s, tx, leased, conversation, *definition, workspace, membership)

    return await run_leased(s, "prepare", work)


async def _check_scope(tx: Tx, leased: Leased, conversation: ConversationRow) -> Rejected | None:
    """T-05, and the Workdir once more: rows may have been edited by SQL (F14)."""
    run = leased.run
    creator: CreatorFacts | None = None
    if run.kind == RunKind.SUBAGENT and run.created_by_run_id is not None and run.relation_id is not None:
        creator = await relations.creator_facts(tx, run.created_by_run_id, run.relation_id)
    shape = RunShape(
        kind=RunKind(run.kind),
        run_id=run.id,
        root_run_id=run.root_run_id,
        depth=run.depth,
        uid=run.uid,
        thread_id=run.thread_id,
        runtime_scope_id=run.runtime_scope_id,
        conversation_scope_id=conversation.runtime_scope_id,
        conversation_uid=conversation.uid,
        workdir=conversation.workdir,
        created_by_run_id=run.created_by_run_id,
        relation_id=run.relation_id,
    )
    checked = check_run_scope(shape, creator)
    if isinstance(checked, ShapeRefused):
        return Rejected(ErrorCode.INVALID_RUNTIME_SCOPE, f"the run's shape is refused: {checked.fault.value}")
    workdir = parse_workdir(conversation.workdir)
    if isinstance(workdir, WorkdirRefused):
        return Rejected(ErrorCode.INVALID_RUNTIME_SCOPE, f"the Workdir {workdir.reason}")
    return None


async def _definition(tx: Tx, leased: Leased) -> tuple[AgentDefinition, str] | Rejected:
    row = await agents.get_agent(tx, leased.run.agent)
    definition = parse_definition(row.definition) if row is not None else ["it does not exist"]
    if isinstance(definition, list) or row is None:
        return Rejected(ErrorCode.PREPARATION_FAILED, "the agent's stored definition cannot be used")
    if row.removed_at is not None:
        return Rejected(ErrorCode.PREPARATION_FAILED, f"the agent {row.name} was removed")
    return definition, row.sha256


async def _place(
    tx: Tx, worker: Worker, leased: Leased, conversation: ConversationRow
) -> tuple[WorkspaceRow, MembershipRow] | Rejected | Refused:
    """The scope's shared workspace and the conversation's membership, made at the first prepare, locked."""
    run = leased.run
    host = await hosts.get_host(tx, worker.host)
    if host is None:
        return Rejected(ErrorCode.SANDBOX_UNAVAILABLE, f"host {worker.host} is not known")
    is_root = conversation.thread_id == run.runtime_scope_id
    provisioner = conversation.provisioner if is_root else None
    if provisioner is None:
        provisioner = await conversations.fix_provisioner(tx, run.runtime_scope_id, host.provisioner)
    if provisioner is None or provisioner != host.provisioner:
        return Rejected(ErrorCode.SANDBOX_UNAVAILABLE, "the scope's sandbox is at another provisioner than this host's")
    if run.provisioner is None:
        await runs.set_run_provisioner(tx, run.id, provisioner)
    workspace = await lock_workspace(tx, run.runtime_scope_id, WorkspaceRow)
    if workspace is None:
        await workspaces.create_workspace(
            tx,
            leased.lease,
            workspace_id=new_id(),
            uid=run.uid,
            runtime_scope_id=run.runtime_scope_id,
            provisioner=provisioner,
            sandbox_id=sandbox_id(run.uid, run.runtime_scope_id),
        )
        workspace = await lock_workspace(tx, run.runtime_scope_id, WorkspaceRow)
    membership = await lock_membership(tx, run.thread_id, MembershipRow)
    if membership is None:
        await memberships.create_membership(
            tx, leased.lease, membership_id=new_id(), runtime_scope_id=run.runtime_scope_id, thread_id=run.thread_id
        )
        membership = await lock_membership(tx, run.thread_id, MembershipRow)
    if workspace is None or membership is None:
        raise LeaseEnded  # the creating statements name the lease
    return workspace, membership
