"""Agent definitions: what a TOML file may say about an agent, checked field by field."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, cast

from turnkeeper.domain.sandbox import is_agent_name
from turnkeeper.domain.settings import SECONDS_MAX

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_RESERVED_ENV: Final = frozenset({"HOME", "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "PYTHONSTARTUP"})
_TEXT_MAX: Final = 4096
_LIST_MAX: Final = 100


class Network(StrEnum):
    """What the sandbox may reach."""

    NONE = "none"
    HOST = "host"


class RuntimePolicy(StrEnum):
    """What becomes of the sandbox when a root run ends (C-09)."""

    RETAINED = "retained"
    EPHEMERAL = "ephemeral"


class PermissionAction(StrEnum):
    """The answer to a permission request."""

    ALLOW = "allow"
    REJECT = "reject"


@dataclass(frozen=True)
class PermissionRule:
    """Requests of this kind of tool (an ACP tool kind such as `edit`, or `*` for all) get this answer."""

    kind: str
    action: PermissionAction


@dataclass(frozen=True)
class AgentDefinition:
    """An agent as its owner described it. `secrets` are names only; their values never come near this (K-11)."""

    name: str
    title: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    secrets: tuple[str, ...] = ()
    setup: tuple[tuple[str, ...], ...] = ()
    network: Network = Network.NONE
    runtime_policy: RuntimePolicy = RuntimePolicy.RETAINED
    new_session_per_turn: bool = False
    can_load: bool = False
    can_resume: bool = False
    permissions: tuple[PermissionRule, ...] = ()
    execution_timeout_s: float | None = None
    session_timeout_s: float = 120
    setup_timeout_s: float = 600
    image: str | None = None
    programs: tuple[str, ...] = ()
    install_hint: str | None = None
    skills: tuple[str, ...] = ()
    allowed_subagents: tuple[str, ...] = ()
    keep_background_processes: bool = False

    def permission_for(self, kind: str | None) -> PermissionAction:
        """The answer to a request for a tool of `kind`: the first rule that fits, else reject."""
        for rule in self.permissions:
            if rule.kind in ("*", kind):
                return rule.action
        return PermissionAction.REJECT


TOOL_KINDS: Final = frozenset(
    {"read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other", "*"}
)
"""The tool kinds of the Agent Client Protocol, and `*`."""


def parse_definition(mapping: Mapping[str, object]) -> AgentDefinition | list[str]:
    """The definition, or one line for each complaint, naming the field, its value and what would be right."""
    reader = _Reader(mapping)
    definition = AgentDefinition(
        name=reader.name(),
        title=reader.text("title", "") or str(mapping.get("name", "")),
        command=reader.command("command"),
        env=MappingProxyType(reader.environment()),
        secrets=reader.env_names("secrets"),
        setup=reader.commands("setup"),
        network=Network(reader.choice("network", Network, Network.NONE)),
        runtime_policy=RuntimePolicy(reader.choice("runtime_policy", RuntimePolicy, RuntimePolicy.RETAINED)),
        new_session_per_turn=reader.flag("new_session_per_turn"),
        can_load=reader.flag("can_load"),
        can_resume=reader.flag("can_resume"),
        permissions=reader.permissions(),
        execution_timeout_s=reader.seconds("execution_timeout_s", None),
        session_timeout_s=reader.seconds("session_timeout_s", 120.0) or 120.0,
        setup_timeout_s=reader.seconds("setup_timeout_s", 600.0) or 600.0,
        image=reader.text("image", None),
        programs=reader.absolute_paths("programs"),
        install_hint=reader.text("install_hint", None),
        skills=reader.names("skills"),
        allowed_subagents=reader.names("allowed_subagents"),
        keep_background_processes=reader.flag("keep_background_processes"),
    )
    reader.refuse_unknown()
    if not reader.complaints:
        reader.complaints += _broken_relations(definition)
    return reader.complaints or definition


def _broken_relations(definition: AgentDefinition) -> list[str]:
    lines: list[str] = []
    loadable = definition.can_load or definition.can_resume or definition.new_session_per_turn
    if definition.runtime_policy is RuntimePolicy.EPHEMERAL and not loadable:
        lines.append(
            "runtime_policy is 'ephemeral', but the agent offers neither can_load nor can_resume, so no conversation "
            "would survive its first turn; use 'retained', or say new_session_per_turn = true"
        )
    both = sorted(set(definition.env) & set(definition.secrets))
    lines += [f"secrets names {name!r}, which env sets too; keep it in one of them" for name in both]
    return lines


class _Reader:
    """Reads fields of one mapping and collects complaints; what it returns then is never used."""

    def __init__(self, mapping: Mapping[str, object]) -> None:
        self._mapping = mapping
        self._known: set[str] = set()
        self.complaints: list[str] = []

    def _get(self, name: str) -> object:
        self._known.add(name)
        return self._mapping.get(name)

    def _complain(self, name: str, value: object, wanted: str) -> None:
        shown = repr(value)
        self.complaints.append(f"{name} is {shown if len(shown) <= 80 else shown[:77] + '...'}; it must be {wanted}")

    def refuse_unknown(self) -> None:
        for name in self._mapping:
            if name not in self._known:
                known = ", ".join(sorted(self._known))
                self.complaints.append(f"{name!r} is not a field of an agent definition; the fields are {known}")

    def name(self) -> str:
        value = self._get("name")
        if isinstance(value, str) and is_agent_name(value):
            return value
        self._complain(
            "name", value, "1 to 63 lower-case letters, digits, '.', '_' or '-', beginning with a letter or digit"
        )
        return ""

    def text(self, name: str, default: str | None) -> str | None:
        value = self._get(name)
        if value is None:
            return default
        if isinstance(value, str) and value.strip() and len(value) <= _TEXT_MAX and _storable(value):
            return value
        self._complain(name, value, f"a text of 1 to {_TEXT_MAX} characters without NUL")
        return default

    def flag(self, name: str) -> bool:
        value = self._get(name)
        if value is None or isinstance(value, bool):
            return bool(value)
        self._complain(name, value, "true or false")
        return False

    def choice(self, name: str, choices: type[StrEnum], default: StrEnum) -> str:
        value = self._get(name)
        if value is None:
            return default.value
        if isinstance(value, str) and value in {choice.value for choice in choices}:
            return value
        self._complain(name, value, "one of " + ", ".join(repr(choice.value) for choice in choices))
        return default.value

    def seconds(self, name: str, default: float | None) -> float | None:
        value = self._get(name)
        if value is None:
            return default
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= SECONDS_MAX:
            return float(value)
        self._complain(name, value, "a positive number of seconds")
        return default

    def _list(self, name: str, wanted: str) -> list[object]:
        value = self._get(name)
        if value is None:
            return []
        items = list(cast("Sequence[object]", value)) if isinstance(value, list | tuple) else None
        if items is not None and len(items) <= _LIST_MAX:
            return items
        self._complain(name, cast("object", value), f"a list of at most {_LIST_MAX} {wanted}")
        return []

    def command(self, name: str) -> tuple[str, ...]:
        value = self._get(name)
        words = _words(value)
        if words is None:
            self._complain(name, value, "a list of words, the program first, such as ['vibe-acp']")
            return ("",)
        return words

    def commands(self, name: str) -> tuple[tuple[str, ...], ...]:
        result: list[tuple[str, ...]] = []
        for index, item in enumerate(self._list(name, "commands, each a list of words")):
            words = _words(item)
            if words is None:
                self._complain(f"{name}[{index}]", item, "a list of words, the program first")
            else:
                result.append(words)
        return tuple(result)

    def _strings(self, name: str, wanted: str, accept: "re.Pattern[str] | None") -> tuple[str, ...]:
        result: list[str] = []
        for index, item in enumerate(self._list(name, wanted)):
            good = isinstance(item, str) and (is_agent_name(item) if accept is None else bool(accept.fullmatch(item)))
            if not good:
                self._complain(f"{name}[{index}]", item, wanted)
            elif item in result:
                self._complain(f"{name}[{index}]", item, "named once only")
            else:
                result.append(cast("str", item))
        return tuple(result)

    def names(self, name: str) -> tuple[str, ...]:
        return self._strings(name, "names of lower-case letters, digits, '.', '_' and '-'", None)

    def env_names(self, name: str) -> tuple[str, ...]:
        names = self._strings(name, "names of environment variables (names only, never values)", _ENV_NAME)
        for item in names:
            if item in _RESERVED_ENV:
                self._complain(name, item, "a variable that the sandbox does not set itself")
        return names

    def absolute_paths(self, name: str) -> tuple[str, ...]:
        result: list[str] = []
        for index, item in enumerate(self._list(name, "absolute paths")):
            if isinstance(item, str) and _is_absolute(item):
                result.append(item)
            else:
                self._complain(f"{name}[{index}]", item, "an absolute path without '.', '..' or empty components")
        return tuple(result)

    def environment(self) -> dict[str, str]:
        value = self._get("env")
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self._complain("env", value, "a table of names and texts")
            return {}
        result: dict[str, str] = {}
        for key, item in cast("Mapping[object, object]", value).items():
            if not (isinstance(key, str) and _ENV_NAME.fullmatch(key)) or key in _RESERVED_ENV:
                self._complain("env", key, "named by letters, digits and '_', and not one that the sandbox sets itself")
            elif not isinstance(item, str) or not _storable(item):
                # The value is not shown: somebody may have put a secret here.
                self.complaints.append(f"env.{key} is no text; it must be one, without NUL")
            else:
                result[key] = item
        return result

    def permissions(self) -> tuple[PermissionRule, ...]:
        rules: list[PermissionRule] = []
        for index, item in enumerate(self._list("permissions", "rules such as {kind = 'edit', action = 'allow'}")):
            rule = _rule(item)
            if rule is None:
                kinds = ", ".join(sorted(TOOL_KINDS))
                wanted = f"{{kind, action}} with a kind of {kinds}, and the action 'allow' or 'reject'"
                self._complain(f"permissions[{index}]", item, wanted)
            else:
                rules.append(rule)
        return tuple(rules)


def _rule(item: object) -> PermissionRule | None:
    if not isinstance(item, Mapping):
        return None
    fields = cast("Mapping[object, object]", item)
    kind, action = fields.get("kind"), fields.get("action")
    if set(fields) != {"kind", "action"} or not isinstance(kind, str) or not isinstance(action, str):
        return None
    if kind not in TOOL_KINDS or action not in {choice.value for choice in PermissionAction}:
        return None
    return PermissionRule(kind, PermissionAction(action))


def _words(value: object) -> tuple[str, ...] | None:
    if not isinstance(value, list | tuple):
        return None
    words = cast("Sequence[object]", value)
    if not words or len(words) > _LIST_MAX or not all(isinstance(word, str) and _storable(word) for word in words):
        return None
    texts = tuple(cast("Sequence[str]", words))
    return texts if texts[0].strip() else None


def _is_absolute(path: str) -> bool:
    return path.startswith("/") and _storable(path) and all(p not in ("", ".", "..") for p in path[1:].split("/"))


def _storable(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)
