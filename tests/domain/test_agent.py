"""Agent definitions: every field refused once, by name, value and what would be right."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.domain.agent import (
    AgentDefinition,
    Network,
    PermissionAction,
    PermissionRule,
    RuntimePolicy,
    parse_definition,
)

MINIMAL: dict[str, object] = {"name": "vibe", "command": ["vibe-acp"]}
FULL: dict[str, object] = {
    "name": "vibe",
    "title": "Vibe",
    "command": ["vibe-acp", "--quiet"],
    "env": {"VIBE_HOME": "/workspace/x", "EMPTY": ""},
    "secrets": ["MISTRAL_API_KEY"],
    "setup": [["pip", "install", "-q", "x"], ["true"]],
    "network": "host",
    "runtime_policy": "ephemeral",
    "new_session_per_turn": False,
    "can_load": True,
    "can_resume": False,
    "permissions": [{"kind": "read", "action": "allow"}, {"kind": "*", "action": "reject"}],
    "execution_timeout_s": 900,
    "session_timeout_s": 60,
    "setup_timeout_s": 30.5,
    "image": "registry/sandbox:1",
    "programs": ["/opt/vibe"],
    "install_hint": "pip install mistral-vibe",
    "skills": ["pdf"],
    "allowed_subagents": ["reviewer"],
    "keep_background_processes": True,
}


def parsed(**changes: object) -> AgentDefinition:
    answer = parse_definition({**MINIMAL, **changes})
    assert isinstance(answer, AgentDefinition), answer
    return answer


def complaints(**changes: object) -> list[str]:
    answer = parse_definition({**MINIMAL, **changes})
    assert isinstance(answer, list), answer
    return answer


def test_minimal_definition() -> None:
    """Defaults: no network, retained, reject, title from the name."""
    definition = parsed()
    assert (definition.title, definition.network) == ("vibe", Network.NONE)
    assert definition.runtime_policy is RuntimePolicy.RETAINED
    assert definition.permission_for("edit") is PermissionAction.REJECT


def test_full_definition() -> None:
    """Every field is read."""
    definition = parse_definition(FULL)
    assert isinstance(definition, AgentDefinition)
    assert definition.command == ("vibe-acp", "--quiet")
    assert dict(definition.env) == {"VIBE_HOME": "/workspace/x", "EMPTY": ""}
    assert definition.secrets == ("MISTRAL_API_KEY",)
    assert definition.setup == (("pip", "install", "-q", "x"), ("true",))
    assert (definition.network, definition.runtime_policy) == (Network.HOST, RuntimePolicy.EPHEMERAL)
    assert (definition.execution_timeout_s, definition.session_timeout_s, definition.setup_timeout_s) == (900, 60, 30.5)
    assert (definition.image, definition.programs) == ("registry/sandbox:1", ("/opt/vibe",))
    assert (definition.skills, definition.allowed_subagents) == (("pdf",), ("reviewer",))
    assert definition.permissions[0] == PermissionRule("read", PermissionAction.ALLOW)
    assert definition.keep_background_processes


def test_the_first_rule_that_fits_decides() -> None:
    """A permission request is answered by rule, by kind, default reject."""
    definition = parsed(
        permissions=[
            {"kind": "edit", "action": "allow"},
            {"kind": "*", "action": "reject"},
            {"kind": "read", "action": "allow"},
        ]
    )
    assert definition.permission_for("edit") is PermissionAction.ALLOW
    assert definition.permission_for("read") is PermissionAction.REJECT
    assert definition.permission_for(None) is PermissionAction.REJECT
    assert parsed(permissions=[{"kind": "*", "action": "allow"}]).permission_for(None) is PermissionAction.ALLOW


WRONG: list[tuple[str, object]] = [
    ("name", ".."),
    ("name", "A"),
    ("name", None),
    ("title", 1),
    ("title", "a\0"),
    ("title", " "),
    ("command", "vibe-acp"),
    ("command", []),
    ("command", [""]),
    ("command", ["a", 1]),
    ("command", ["a\0b"]),
    ("command", None),
    ("env", ["A"]),
    ("env", {"A-B": "x"}),
    ("env", {"HOME": "/x"}),
    ("env", {"LD_PRELOAD": "/x"}),
    ("secrets", "KEY"),
    ("secrets", ["KEY=value"]),
    ("secrets", ["A", "A"]),
    ("secrets", ["HOME"]),
    ("setup", ["pip install x"]),
    ("setup", [[]]),
    ("setup", [["x"]] * 101),
    ("network", "internet"),
    ("network", True),
    ("runtime_policy", "forever"),
    ("new_session_per_turn", "yes"),
    ("can_load", 1),
    ("permissions", {"kind": "read"}),
    ("permissions", [{"kind": "read"}]),
    ("permissions", [{"kind": "read", "action": "maybe"}]),
    ("permissions", [{"kind": "shell", "action": "allow"}]),
    ("permissions", [{"kind": ["read"], "action": "allow"}]),
    ("permissions", [{"kind": "read", "action": ["allow"]}]),
    ("permissions", [{"kind": "read", "action": "allow", "x": 1}]),
    ("execution_timeout_s", 0),
    ("execution_timeout_s", float("nan")),
    ("execution_timeout_s", float("inf")),
    ("execution_timeout_s", True),
    ("session_timeout_s", "60"),
    ("image", ""),
    ("programs", ["opt/vibe"]),
    ("programs", ["/opt/../etc"]),
    ("programs", ["/"]),
    ("programs", ["//x"]),
    ("install_hint", ["x"]),
    ("skills", ["../x"]),
    ("allowed_subagents", [1]),
    ("keep_background_processes", 0),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_wrong_values(name: str, value: object) -> None:
    """Case: F14 (names). One line that names the field and says what would be right; never a traceback."""
    lines = complaints(**{name: value})
    assert any(line.startswith(name) for line in lines), lines
    assert all("\n" not in line and "must be" in line for line in lines)


def test_every_complaint_at_once_and_unknown_fields() -> None:
    """Whoever writes a file learns everything at once; a misspelt field is not ignored."""
    lines = complaints(name="X", comand=["a"], network="x")
    assert len(lines) == 3
    assert any(line.startswith("'comand' is not a field") for line in lines)


def test_a_value_that_may_be_a_secret_is_not_shown() -> None:
    """K-11: what somebody put into env by mistake does not end up in a terminal or log."""
    (line,) = complaints(env={"KEY": ["sk-canary"]})
    assert "canary" not in line
    assert line.startswith("env.KEY")


def test_ephemeral_needs_a_way_back() -> None:
    """Protocol, section 7: ephemeral without load or resume is refused unless it says new_session_per_turn."""
    (line,) = complaints(runtime_policy="ephemeral")
    assert "runtime_policy" in line
    assert "new_session_per_turn" in line
    for way in ("can_load", "can_resume", "new_session_per_turn"):
        assert parsed(runtime_policy="ephemeral", **{way: True}).runtime_policy is RuntimePolicy.EPHEMERAL


def test_a_name_is_plain_or_secret() -> None:
    """A variable in both env and secrets would have two values."""
    (line,) = complaints(env={"KEY": "x"}, secrets=["KEY"])
    assert "'KEY'" in line


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(sorted(FULL)) | st.text(max_size=5), JSON, max_size=8))
def test_no_mapping_breaks_the_parser(mapping: dict[str, Any]) -> None:
    """Whatever a file holds: a definition, or lines."""
    answer = parse_definition(mapping)
    assert isinstance(answer, AgentDefinition) or (answer and all(isinstance(line, str) for line in answer))
