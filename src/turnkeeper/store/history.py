"""Reads recorded facts for the checkers of `domain.history`: whole scopes at a time, one statement for each table.

Every statement goes by an index that exists for the product's own work, and none reads a text (a prompt, an output, an
event's data) but where prompts are asked for. A page has a bounded number of runs, or one scope.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from turnkeeper.domain.history.facts import (
    ActivationFact,
    AttemptFact,
    ConversationFact,
    EventsFact,
    History,
    HoldFact,
    MembershipFact,
    MessageFact,
    OwnerFact,
    RunFact,
    SnapshotFact,
    WorkspaceFact,
)
from turnkeeper.domain.settings import Limits, Timing
from turnkeeper.store.tx import Reader

FIRST = "00000000-0000-0000-0000-000000000000"
"""Before every id."""
RECENT_RUNS = 200
"""How many of an owner's newest runs are looked at for the last one that ended."""


@dataclass(frozen=True)
class ScopeSize:
    """A scope and how many runs its conversations have."""

    runtime_scope_id: str
    runs: int


async def scopes_after(reader: Reader, after: str, limit: int) -> list[ScopeSize]:
    """The next scopes in the order of their ids, of whatever state."""
    return await reader.fetch_all(
        "WITH page AS (SELECT thread_id FROM conversations WHERE thread_id > %s::uuid AND kind = 'chat' "
        "ORDER BY thread_id LIMIT %s) "
        "SELECT p.thread_id AS runtime_scope_id, (SELECT count(*) FROM conversations c JOIN runs r "
        "ON r.thread_id = c.thread_id WHERE c.runtime_scope_id = p.thread_id) AS runs FROM page p ORDER BY p.thread_id",
        (after, limit),
        as_=ScopeSize,
    )


async def owners_with_holds(reader: Reader, after: str, limit: int) -> list[str]:
    """The next owners that hold a Workdir, in the order of their ids."""
    rows = await reader.fetch_all(
        "SELECT DISTINCT uid FROM workdir_holds WHERE ended_at IS NULL AND uid > %s::uuid ORDER BY uid LIMIT %s",
        (after, limit),
    )
    return [row["uid"] for row in rows]


async def read_holds(reader: Reader, uids: Sequence[str], timing: Timing) -> History:
    """Every open hold of some owners, and nothing else."""
    now = await _now(reader)
    holds = await reader.fetch_all(
        "SELECT id, uid, workdir, runtime_scope_id, ended_at FROM workdir_holds "
        "WHERE uid = ANY(%s::uuid[]) AND ended_at IS NULL",
        (list(uids),),
        as_=HoldFact,
    )
    return History(now=now, timing=timing, holds=tuple(holds))


async def read_scopes(
    reader: Reader,
    scopes: Sequence[str],
    timing: Timing,
    *,
    prompts: bool = False,
    trees_per_owner: int = Limits().trees_per_owner,
) -> History:
    """Everything that is recorded about whole scopes. In one snapshot, or the facts of two moments are mixed.

    `prompts`: with the runs' prompts, which are needed only beside a ledger. `now` is the database's clock at the start.
    `trees_per_owner`: the control plane's setting, the room of owners without one of their own.
    """
    now = await _now(reader)
    conversations = await reader.fetch_all(
        "SELECT c.thread_id, c.uid, c.kind, c.runtime_scope_id, c.state, c.queue_paused, c.runtime_policy, c.updated_at, "
        "coalesce(e.last_seq, 0) AS last_seq, coalesce(e.dropped_before, 0) AS dropped_before FROM conversations c "
        "LEFT JOIN event_counters e ON e.thread_id = c.thread_id WHERE c.runtime_scope_id = ANY(%s::uuid[])",
        (list(scopes),),
        as_=ConversationFact,
    )
    threads = [one.thread_id for one in conversations]
    runs = await reader.fetch_all(
        "SELECT id, thread_id, uid, kind, runtime_scope_id, root_run_id, depth, queue_position, status, "
        "cancel_requested_at, runtime_cleanup_pending, ready_at, created_at, ended_at, "
        "CASE WHEN %s THEN prompt END AS prompt FROM runs WHERE thread_id = ANY(%s::uuid[])",
        (prompts, threads),
        as_=RunFact,
    )
    history = History(now=now, timing=timing, conversations=tuple(conversations), runs=tuple(runs))
    history = replace(
        history, owners=tuple(await _owners(reader, sorted({one.uid for one in conversations}), trees_per_owner))
    )
    history = await _with_turns(reader, history, list(scopes), threads)
    return await _with_records(reader, history, list(scopes), threads)


async def _now(reader: Reader) -> datetime:
    return await reader.fetch_value("SELECT tk_now()")


async def _owners(reader: Reader, uids: list[str], trees_per_owner: int) -> list[OwnerFact]:
    return await reader.fetch_all(
        "SELECT u.uid, coalesce(u.tree_room, %s) AS tree_room, (SELECT count(DISTINCT r.root_run_id) FROM runs r WHERE r.uid = u.uid "
        "AND (r.status IN ('running', 'cancel_requested', 'recovering') OR r.ready_at IS NOT NULL)) AS live_trees, "
        "(SELECT max(n.ended_at) FROM (SELECT ended_at FROM runs WHERE uid = u.uid ORDER BY id DESC LIMIT %s) n) "
        "AS last_end_at FROM users u WHERE u.uid = ANY(%s::uuid[])",
        (trees_per_owner, RECENT_RUNS, uids),
        as_=OwnerFact,
    )


async def _with_turns(reader: Reader, history: History, scopes: list[str], threads: list[str]) -> History:
    """Attempts, workspaces, memberships, activations, snapshots."""
    attempts = await reader.fetch_all(
        "SELECT a.id, a.run_id, a.attempt_no, a.lease_generation, a.claimed_at, a.lease_expires_at, "
        "a.last_heartbeat_at, a.accepted_at, a.ended_at, a.outcome FROM runs r JOIN attempts a ON a.run_id = r.id "
        "WHERE r.thread_id = ANY(%s::uuid[])",
        (threads,),
        as_=AttemptFact,
    )
    workspaces = await reader.fetch_all(
        "SELECT id, runtime_scope_id, epoch FROM shared_workspaces WHERE runtime_scope_id = ANY(%s::uuid[])",
        (scopes,),
        as_=WorkspaceFact,
    )
    memberships = await reader.fetch_all(
        "SELECT id, shared_workspace_id, thread_id, native_turn, state, fence, activation_id, lost_reason "
        "FROM memberships WHERE thread_id = ANY(%s::uuid[])",
        (threads,),
        as_=MembershipFact,
    )
    activations = await reader.fetch_all(
        "SELECT a.id, a.membership_id, a.run_id, a.attempt_id, a.fence, a.state, a.created_at, a.admitted_at, "
        "a.settled_at, a.ended_at, a.outcome, a.native_turn, a.epoch FROM memberships m "
        "JOIN activations a ON a.membership_id = m.id WHERE m.thread_id = ANY(%s::uuid[])",
        (threads,),
        as_=ActivationFact,
    )
    snapshots = await reader.fetch_all(
        "SELECT s.shared_workspace_id, s.epoch, s.run_id FROM shared_workspaces w "
        "JOIN snapshots s ON s.shared_workspace_id = w.id WHERE w.runtime_scope_id = ANY(%s::uuid[])",
        (scopes,),
        as_=SnapshotFact,
    )
    return replace(
        history,
        attempts=tuple(attempts),
        workspaces=tuple(workspaces),
        memberships=tuple(memberships),
        activations=tuple(activations),
        snapshots=tuple(snapshots),
    )


async def _with_records(reader: Reader, history: History, scopes: list[str], threads: list[str]) -> History:
    """Events, messages, holds. Consecutive events of one run and attempt become one row here, so that none is read singly."""
    events = await reader.fetch_all(
        "SELECT thread_id, run_id, attempt_id, is_end, min(seq) AS first_seq, max(seq) AS last_seq, "
        "min(created_at) AS first_at, max(created_at) AS last_at FROM (SELECT thread_id, run_id, attempt_id, "
        "kind = 'end' AS is_end, seq, created_at, "
        "seq - row_number() OVER (PARTITION BY thread_id, run_id, attempt_id, kind = 'end' ORDER BY seq) AS island "
        "FROM events WHERE thread_id = ANY(%s::uuid[])) numbered GROUP BY thread_id, run_id, attempt_id, is_end, island",
        (threads,),
        as_=EventsFact,
    )
    messages = await reader.fetch_all(
        "SELECT id, thread_id, run_id, role, delivery FROM messages WHERE thread_id = ANY(%s::uuid[])",
        (threads,),
        as_=MessageFact,
    )
    holds = await reader.fetch_all(
        "SELECT id, uid, workdir, runtime_scope_id, ended_at FROM workdir_holds "
        "WHERE runtime_scope_id = ANY(%s::uuid[]) AND ended_at IS NULL",
        (scopes,),
        as_=HoldFact,
    )
    return replace(history, events=tuple(events), messages=tuple(messages), holds=tuple(holds))
