"""Conversations. Thread id, owner, scope and Workdir never change, so they may be read before any lock is held."""

from dataclasses import dataclass
from datetime import datetime

from turnkeeper.store.tx import Reader, Tx


@dataclass(frozen=True)
class ConversationRow:
    """A row of `conversations`."""

    thread_id: str
    uid: str
    agent: str
    kind: str
    parent_thread_id: str | None
    runtime_scope_id: str
    workdir: str
    title: str
    state: str
    queue_paused: bool
    runtime_policy: str
    provisioner: str | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True)
class ConversationView:
    """A conversation as its owner sees it: with its membership's native turn, its scope's epoch and its live run."""

    thread_id: str
    uid: str
    agent: str
    title: str
    workdir: str
    state: str
    queue_paused: bool
    kind: str
    native_turn: int
    epoch: int
    live_run_id: str | None
    was_lost: bool
    created_at: datetime
    updated_at: datetime


async def insert_conversation(
    tx: Tx, *, thread_id: str, uid: str, agent: str, workdir: str, title: str, runtime_policy: str
) -> int:
    """A chat: its own scope."""
    return await tx.execute(
        "INSERT INTO conversations (thread_id, uid, agent, kind, runtime_scope_id, workdir, title, runtime_policy) "
        "VALUES (%(thread)s, %(uid)s, %(agent)s, 'chat', %(thread)s, %(workdir)s, %(title)s, %(policy)s)",
        {
            "thread": thread_id,
            "uid": uid,
            "agent": agent,
            "workdir": workdir,
            "title": title,
            "policy": runtime_policy,
        },
    )


async def get_conversation(reader: Reader, thread_id: str) -> ConversationRow | None:
    """The row, whoever owns it."""
    return await reader.fetch_one(
        "SELECT thread_id, uid, agent, kind, parent_thread_id, runtime_scope_id, workdir, title, state, queue_paused, "
        "runtime_policy, provisioner, created_at, updated_at FROM conversations WHERE thread_id = %s",
        (thread_id,),
        as_=ConversationRow,
    )


async def scope_of(reader: Reader, uid: str, thread_id: str) -> str | None:
    """The runtime scope of an owner's conversation. None: this owner has no such conversation."""
    return await reader.fetch_value(
        "SELECT runtime_scope_id FROM conversations WHERE thread_id = %s AND uid = %s", (thread_id, uid)
    )


async def get_view(reader: Reader, uid: str, thread_id: str) -> ConversationView | None:
    """What the owner sees. None: this owner has no such conversation."""
    return await reader.fetch_one(
        "SELECT c.thread_id, c.uid, c.agent, c.title, c.workdir, c.state, c.queue_paused, c.kind, "
        "coalesce(m.native_turn, 0) AS native_turn, coalesce(w.epoch, 0) AS epoch, r.id AS live_run_id, "
        "c.state = 'lost' OR coalesce(m.state = 'lost', false) AS was_lost, "
        "c.created_at, c.updated_at FROM conversations c "
        "LEFT JOIN memberships m ON m.thread_id = c.thread_id "
        "LEFT JOIN shared_workspaces w ON w.runtime_scope_id = c.runtime_scope_id "
        "LEFT JOIN runs r ON r.thread_id = c.thread_id AND r.status IN ('running', 'cancel_requested', 'recovering') "
        "WHERE c.thread_id = %s AND c.uid = %s",
        (thread_id, uid),
        as_=ConversationView,
    )


async def list_views(reader: Reader, uid: str, *, before: str | None, limit: int) -> list[ConversationView]:
    """An owner's conversations, newest first, from the one before `before` on."""
    return await reader.fetch_all(
        "SELECT c.thread_id, c.uid, c.agent, c.title, c.workdir, c.state, c.queue_paused, c.kind, "
        "coalesce(m.native_turn, 0) AS native_turn, coalesce(w.epoch, 0) AS epoch, r.id AS live_run_id, "
        "c.state = 'lost' OR coalesce(m.state = 'lost', false) AS was_lost, "
        "c.created_at, c.updated_at FROM conversations c "
        "LEFT JOIN memberships m ON m.thread_id = c.thread_id "
        "LEFT JOIN shared_workspaces w ON w.runtime_scope_id = c.runtime_scope_id "
        "LEFT JOIN runs r ON r.thread_id = c.thread_id AND r.status IN ('running', 'cancel_requested', 'recovering') "
        "WHERE c.uid = %s AND (%s::uuid IS NULL OR c.thread_id < %s::uuid) ORDER BY c.thread_id DESC LIMIT %s",
        (uid, before, before, limit),
        as_=ConversationView,
    )


async def end_conversation(tx: Tx, thread_id: str, state: str) -> int:
    """Make an open conversation `lost` or `closed`. Zero: it is not open any more."""
    return await tx.execute(
        "UPDATE conversations SET state = %s, updated_at = tk_now() WHERE thread_id = %s AND state = 'open'",
        (state, thread_id),
    )


async def close_scope(tx: Tx, runtime_scope_id: str) -> int:
    """Close every conversation of a scope: the root, lost or not, and the open ones below it."""
    return await tx.execute(
        "UPDATE conversations SET state = 'closed', updated_at = tk_now() WHERE runtime_scope_id = %s "
        "AND (state = 'open' OR (state = 'lost' AND thread_id = runtime_scope_id))",
        (runtime_scope_id,),
    )


async def touch_conversation(tx: Tx, thread_id: str, *, title: str = "") -> int:
    """Note that something happened in it. `title` is taken where it has none."""
    return await tx.execute(
        "UPDATE conversations SET updated_at = tk_now(), title = CASE WHEN title = '' THEN %s ELSE title END "
        "WHERE thread_id = %s",
        (title, thread_id),
    )


async def fix_provisioner(tx: Tx, runtime_scope_id: str, provisioner: str) -> str | None:
    """Fix the scope's provisioner on its root conversation, for good; the one that is fixed, by whomever."""
    return await tx.fetch_value(
        "UPDATE conversations SET provisioner = coalesce(provisioner, %s) WHERE thread_id = %s RETURNING provisioner",
        (provisioner, runtime_scope_id),
    )
