"""Rows for tests of the store, as plain SQL: the smallest that the schema accepts, and any column to choose."""

from typing import Any, LiteralString

from psycopg import sql
from psycopg.types.json import Jsonb

from harness.postgres import RawSession
from turnkeeper.kit.ids import digest, new_id

DIGEST = digest("nobody's")
SHA256 = "0" * 64


class Rows:
    """Inserts rows on one raw session; each method returns the id of the row. A column that is not given gets a value that passes."""

    def __init__(self, session: RawSession) -> None:
        self.session = session

    async def insert(self, table: LiteralString, **columns: Any) -> None:
        """Insert one row; dicts are jsonb."""
        values = [Jsonb(value) if isinstance(value, dict) else value for value in columns.values()]
        statement = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
            sql.Identifier(table),
            sql.SQL(", ").join(map(sql.Identifier, columns)),
            sql.SQL(", ").join([sql.Placeholder()] * len(columns)),
        )
        await self.session.execute(statement, values)

    async def update(self, table: LiteralString, row_id: str, /, **columns: Any) -> None:
        """Update one row by its id."""
        statement = sql.SQL("UPDATE {} SET {} WHERE id = {}").format(
            sql.Identifier(table),
            sql.SQL(", ").join(sql.SQL("{} = {}").format(sql.Identifier(name), sql.Placeholder()) for name in columns),
            sql.Placeholder(),
        )
        cursor = await self.session.execute(statement, [*columns.values(), row_id])
        assert cursor.rowcount == 1

    async def value(self, query: LiteralString, *params: object) -> Any:
        """The first column of the first row."""
        row = await (await self.session.execute(query, params)).fetchone()
        return row[0] if row is not None else None

    async def user(self, **columns: Any) -> str:
        """An owner."""
        uid = new_id()
        await self.insert("users", **{"uid": uid, "name": f"owner-{uid[-12:]}", **columns})
        return uid

    async def agent(self, name: str = "scripted") -> str:
        """An agent definition, once."""
        await self.session.execute(
            "INSERT INTO agents (name, definition, sha256, runtime_policy) VALUES (%s, '{}', %s, 'retained') "
            "ON CONFLICT DO NOTHING",
            (name, SHA256),
        )
        return name

    async def conversation(self, uid: str, **columns: Any) -> str:
        """A root conversation; with `parent_thread_id` and `runtime_scope_id` a subagent's."""
        thread = new_id()
        kind = "subagent" if "parent_thread_id" in columns else "chat"
        values = {"thread_id": thread, "uid": uid, "agent": await self.agent(), "kind": kind, "runtime_scope_id": thread,
                  "workdir": f"conversations/{thread}", "runtime_policy": "retained"}  # fmt: skip
        await self.insert("conversations", **{**values, **columns})
        return thread

    async def chat(self) -> tuple[str, str]:
        """A new owner and a root conversation: (uid, thread id)."""
        uid = await self.user()
        return uid, await self.conversation(uid)

    async def run(self, uid: str, thread: str, **columns: Any) -> str:
        """A run of a conversation; pending, chat, its own root, unless said otherwise."""
        run = new_id()
        values = {"id": run, "thread_id": thread, "uid": uid, "agent": "scripted", "kind": "chat", "runtime_scope_id": thread,
                  "root_run_id": run, "request_id": new_id(), "prompt": "hello"}  # fmt: skip
        await self.insert("runs", **{**values, **columns})
        return run

    async def subagent(
        self, uid: str, parent_thread: str, scope: str, parent_run: str, root: str, depth: int, **columns: Any
    ) -> str:
        """A subagent's conversation, relation and run below `parent_run`; the run's id."""
        child = await self.conversation(uid, parent_thread_id=parent_thread, runtime_scope_id=scope)
        relation = new_id()
        await self.insert(
            "subagent_relations",
            id=relation,
            parent_thread_id=parent_thread,
            child_thread_id=child,
            creating_run_id=parent_run,
        )
        values = {"kind": "subagent", "runtime_scope_id": scope, "root_run_id": root, "depth": depth,
                  "created_by_run_id": parent_run, "relation_id": relation}  # fmt: skip
        return await self.run(uid, child, **{**values, **columns})

    async def attempt(self, run: str, *, number: int = 1, root: str | None = None, **columns: Any) -> str:
        """An open attempt of a run."""
        attempt = new_id()
        generation = await self.value("SELECT nextval('lease_generations')")
        moment = await self.value("SELECT tk_now() + interval '1 hour'")
        values = {"id": attempt, "run_id": run, "attempt_no": number, "lease_generation": generation, "lease_owner": "h/i",
                  "claim_id": new_id(), "host": "h", "incarnation": new_id(), "root_run_id": root or run,
                  "token_hash": digest(attempt), "lease_ttl_s": 120, "lease_expires_at": moment,
                  "execution_deadline": moment, "renewable_until": moment}  # fmt: skip
        await self.insert("attempts", **{**values, **columns})
        return attempt

    async def workspace(self, uid: str, scope: str, **columns: Any) -> str:
        """A shared workspace."""
        workspace = new_id()
        await self.insert(
            "shared_workspaces",
            **{"id": workspace, "uid": uid, "runtime_scope_id": scope, "sandbox_id": scope, **columns},
        )
        return workspace

    async def membership(self, workspace: str, thread: str, **columns: Any) -> str:
        """An idle membership."""
        membership = new_id()
        await self.insert(
            "memberships", **{"id": membership, "shared_workspace_id": workspace, "thread_id": thread, **columns}
        )
        return membership

    async def activation(self, membership: str, run: str, attempt: str, fence: int, **columns: Any) -> str:
        """A preparing activation."""
        activation = new_id()
        values = {"id": activation, "membership_id": membership, "run_id": run, "attempt_id": attempt, "fence": fence,
                  "generation": "g1", "boot_id": "b1", "token_hash": digest(activation)}  # fmt: skip
        await self.insert("activations", **{**values, **columns})
        return activation

    async def event(self, thread: str, run: str, seq: int, kind: str = "text", **columns: Any) -> None:
        """An event."""
        await self.insert(
            "events", **{"thread_id": thread, "seq": seq, "run_id": run, "kind": kind, "data": {}, **columns}
        )
