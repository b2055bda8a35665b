"""Agent definitions: added, listed, removed. Whether a command is there is a fact of the sandbox's machine, asked for here."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from turnkeeper.domain.agent import AgentDefinition, Network, parse_definition
from turnkeeper.domain.errors import ProblemCode
from turnkeeper.kit.text import clean
from turnkeeper.services.answers import Invalid, NotFound
from turnkeeper.services.auth import Owner
from turnkeeper.services.context import Lacks, Services
from turnkeeper.store import agents as statements
from turnkeeper.store.agents import AgentRow
from turnkeeper.store.tx import Database, Tx
from turnkeeper.wire.canonical import canonical_sha256
from turnkeeper.wire.public import Agent

NO_AGENT = NotFound("agent")
HIDDEN = "(shown to administrators)"
"""In the place of a value of the environment, which may be a password that somebody did not name as a secret."""


def definition_json(definition: AgentDefinition) -> dict[str, Any]:
    """A definition as it is stored: what `parse_definition` reads, without what is at its default."""
    stored: dict[str, Any] = {
        "name": definition.name,
        "title": definition.title,
        "command": list(definition.command),
        "env": dict(definition.env),
        "secrets": list(definition.secrets),
        "setup": [list(command) for command in definition.setup],
        "network": definition.network.value,
        "runtime_policy": definition.runtime_policy.value,
        "new_session_per_turn": definition.new_session_per_turn,
        "can_load": definition.can_load,
        "can_resume": definition.can_resume,
        "permissions": [{"kind": rule.kind, "action": rule.action.value} for rule in definition.permissions],
        "execution_timeout_s": definition.execution_timeout_s,
        "session_timeout_s": definition.session_timeout_s,
        "setup_timeout_s": definition.setup_timeout_s,
        "image": definition.image,
        "programs": list(definition.programs),
        "install_hint": definition.install_hint,
        "skills": list(definition.skills),
        "allowed_subagents": list(definition.allowed_subagents),
        "keep_background_processes": definition.keep_background_processes,
    }
    return {name: value for name, value in stored.items() if value not in (None, [], {}, False)}


async def put_agent(s: Services, name: str, definition: Mapping[str, object]) -> Agent | Invalid:
    """Add or replace a definition. `Invalid` has one line for each complaint."""
    parsed = parse_definition(definition)
    if isinstance(parsed, list):
        return Invalid(ProblemCode.BAD_REQUEST, "definition", "; ".join(parsed), {"complaints": parsed})
    if parsed.name != name:
        return Invalid(ProblemCode.BAD_REQUEST, "name", f"the definition is of {parsed.name!r}, not of {name!r}")

    async def work(tx: Tx) -> AgentRow:
        return await _put(tx, parsed, is_ready_made=s.ready_made.get(name) == digest_of(parsed))

    return await _shown(s, await s.db.run("agent.put", work))


def digest_of(definition: AgentDefinition) -> str:
    """By which two definitions are compared."""
    return canonical_sha256(definition_json(definition))


async def _put(tx: Tx, definition: AgentDefinition, *, is_ready_made: bool) -> AgentRow:
    stored = definition_json(definition)
    return await statements.put_agent(
        tx,
        name=definition.name,
        definition=stored,
        sha256=canonical_sha256(stored),
        runtime_policy=definition.runtime_policy.value,
        is_ready_made=is_ready_made,
    )


async def put_if_new(db: Database, definition: AgentDefinition) -> bool:
    """Add a ready-made definition, unless there is or was an agent of that name; whether it was added.

    One that comes from an earlier release, was reset to it or equals it is brought to this release's, unless it was removed.
    """
    stored = definition_json(definition)

    async def work(tx: Tx) -> bool:
        if await statements.get_agent(tx, definition.name) is None:
            await _put(tx, definition, is_ready_made=True)
            return True
        await statements.refresh_agent(
            tx,
            name=definition.name,
            definition=stored,
            sha256=canonical_sha256(stored),
            runtime_policy=definition.runtime_policy.value,
        )
        return False

    return await db.run("agent.ready_made", work)


async def list_agents(s: Services) -> list[Agent]:
    """All that can be chosen, by name, without their definitions."""
    rows = await s.db.read("agent.list", statements.list_agents)
    return list(await asyncio.gather(*(_shown(s, row, with_definition=False) for row in rows)))


async def get_agent(s: Services, owner: Owner, name: str) -> Agent | NotFound:
    """One with its definition. Of its environment everybody sees the names, and administrators the values."""
    row = await s.db.read("agent.get", lambda r: statements.get_agent(r, clean(name)))
    if row is None or row.removed_at is not None:
        return NO_AGENT
    agent = await _shown(s, row)
    if owner.is_admin:
        return agent
    return agent.model_copy(update={"definition": without_values(row.definition)})


def without_values(definition: Mapping[str, Any]) -> dict[str, Any]:
    """A stored definition with `HIDDEN` for each value of its environment, of whatever form an earlier release stored it."""
    if "env" not in definition:
        return dict(definition)
    env: object = definition["env"]
    names = list(cast("Mapping[str, object]", env)) if isinstance(env, Mapping) else []
    return {**definition, "env": dict.fromkeys(names, HIDDEN)}


async def remove_agent(s: Services, name: str) -> Agent | NotFound:
    """No conversation can be started with it any more; those that exist keep their records, and their runs fail."""

    async def work(tx: Tx) -> AgentRow | None:
        return await statements.remove_agent(tx, clean(name))

    row = await s.db.run("agent.remove", work)
    return NO_AGENT if row is None else await _shown(s, row)


async def _shown(s: Services, row: AgentRow, *, with_definition: bool = True) -> Agent:
    parsed = parse_definition(cast("Mapping[str, object]", row.definition))
    if isinstance(parsed, list):
        lacks = Lacks("its stored definition cannot be used: " + "; ".join(parsed))
        title, network, hint = row.name, Network.NONE, None
    else:
        lacks = Lacks()
        if s.commands is not None:
            lacks = await s.commands.missing(parsed.command, parsed.programs, parsed.secrets)
        title, network, hint = parsed.title, parsed.network, parsed.install_hint
    return Agent(
        name=row.name,
        title=title,
        network=network.value,
        runtime_policy=row.runtime_policy,
        available=lacks == Lacks(),
        unavailable="; ".join(line for line in (lacks.program, lacks.secrets) if line) or None,
        # A secret is nothing that can be installed.
        install=hint if lacks.program is not None else None,
        definition=row.definition if with_definition else None,
    )
