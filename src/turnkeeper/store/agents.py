"""Agent definitions. A removed agent keeps its row: conversations and runs name it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from turnkeeper.store.tx import Reader, Tx, jsonb


@dataclass(frozen=True)
class AgentRow:
    """A row of `agents`. `definition` is what `agents add` stored, as JSON.

    Both times are equal for what comes with a release, or was never replaced: only that is brought to a newer release's.
    """

    name: str
    definition: dict[str, Any]
    sha256: str
    runtime_policy: str
    created_at: datetime
    updated_at: datetime
    removed_at: datetime | None


async def put_agent(
    tx: Tx, *, name: str, definition: dict[str, Any], sha256: str, runtime_policy: str, is_ready_made: bool
) -> AgentRow:
    """Add or replace a definition; a removed one comes back. `is_ready_made`: it is what comes with this release."""
    row = await tx.fetch_one(
        "INSERT INTO agents AS a (name, definition, sha256, runtime_policy, created_at, updated_at) "
        "SELECT %s, %s, %s, %s, t.at, t.at FROM (SELECT tk_now() AS at) t "
        "ON CONFLICT (name) DO UPDATE SET definition = EXCLUDED.definition, sha256 = EXCLUDED.sha256, "
        "runtime_policy = EXCLUDED.runtime_policy, removed_at = NULL, "
        "updated_at = CASE WHEN %s THEN a.created_at WHEN a.sha256 = EXCLUDED.sha256 THEN a.updated_at ELSE tk_now() END "
        "RETURNING name, definition, sha256, runtime_policy, created_at, updated_at, removed_at",
        (name, jsonb(definition), sha256, runtime_policy, is_ready_made),
        as_=AgentRow,
    )
    assert row is not None  # noqa: S101 - an upsert returns its row
    return row


async def refresh_agent(tx: Tx, *, name: str, definition: dict[str, Any], sha256: str, runtime_policy: str) -> int:
    """Bring a definition that follows the release to this one's; one that equals it follows from now on. Zero: none of both."""
    return await tx.execute(
        "UPDATE agents SET definition = %s, sha256 = %s, runtime_policy = %s, updated_at = created_at "
        "WHERE name = %s AND removed_at IS NULL AND (sha256 = %s) <> (created_at = updated_at)",
        (jsonb(definition), sha256, runtime_policy, name, sha256),
    )


async def get_agent(reader: Reader, name: str) -> AgentRow | None:
    """The definition, also of a removed agent."""
    return await reader.fetch_one(
        "SELECT name, definition, sha256, runtime_policy, created_at, updated_at, removed_at FROM agents "
        "WHERE name = %s",
        (name,),
        as_=AgentRow,
    )


async def list_agents(reader: Reader) -> list[AgentRow]:
    """Those that are not removed, by name."""
    return await reader.fetch_all(
        "SELECT name, definition, sha256, runtime_policy, created_at, updated_at, removed_at FROM agents "
        "WHERE removed_at IS NULL ORDER BY name",
        as_=AgentRow,
    )


async def remove_agent(tx: Tx, name: str) -> AgentRow | None:
    """None: there is none of that name that is not removed already."""
    return await tx.fetch_one(
        "UPDATE agents SET removed_at = tk_now() WHERE name = %s AND removed_at IS NULL "
        "RETURNING name, definition, sha256, runtime_policy, created_at, updated_at, removed_at",
        (name,),
        as_=AgentRow,
    )


async def new_session_per_turn(reader: Reader, name: str) -> bool:
    """Whether each turn of this agent has a native session of its own."""
    return bool(
        await reader.fetch_value(
            "SELECT (definition ->> 'new_session_per_turn')::boolean FROM agents WHERE name = %s", (name,)
        )
    )
