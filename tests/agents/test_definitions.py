"""The ready-made agent definitions."""

from __future__ import annotations

import tomllib

import pytest

from turnkeeper.agents import definitions
from turnkeeper.domain.agent import AgentDefinition, Network, PermissionAction, parse_definition

TEXTS = definitions.texts()


def parsed(name: str) -> AgentDefinition:
    """One ready-made definition."""
    definition = parse_definition(tomllib.loads(TEXTS[name]))
    assert isinstance(definition, AgentDefinition), definition
    return definition


def test_all_are_there() -> None:
    """The scripted agent first, then five real ones."""
    assert list(TEXTS) == ["scripted", "claude", "codex", "gemini", "opencode", "vibe"]


@pytest.mark.parametrize("name", TEXTS)
def test_each_is_valid_and_says_what_was_run(name: str) -> None:
    """The file's name is the agent's; a comment says how far it was run."""
    assert parsed(name).name == name
    assert "\n# Run: " in TEXTS[name]


def test_the_scripted_agent_needs_nothing() -> None:
    """No network, no secret, no program of its own."""
    scripted = parsed("scripted")
    assert (scripted.network, scripted.secrets, scripted.programs) == (Network.NONE, (), ())
    assert scripted.can_load
    assert scripted.can_resume


@pytest.mark.parametrize("name", [name for name in TEXTS if name != "scripted"])
def test_real_agents_bring_their_programs_and_name_their_secret(name: str) -> None:
    """Proves: K-11. The command lies below what is bound, an install command is given, and no value of a secret is."""
    agent = parsed(name)
    assert agent.network is Network.HOST
    assert agent.command[0].startswith(f"{agent.programs[0]}/")
    assert agent.install_hint is not None
    assert agent.programs[0] in agent.install_hint
    assert len(agent.secrets) == 1
    assert agent.permission_for("execute") is PermissionAction.ALLOW
    assert agent.permission_for("other") is PermissionAction.REJECT
    assert agent.permission_for(None) is PermissionAction.REJECT
