"""The start-up message of a sandbox manager: one JSON object on a descriptor that is read to its end and closed at once.

    python -I -m turnkeeper.sandboxd --listen-fd N --config-fd M

`N` is a listening stream socket (Unix or TCP), `M` a file, pipe or sealed memfd that holds `SandboxStart.to_json()`. The
manager writes JSON lines to stderr, which must not be a terminal of the agent's. A message that is not exactly this ends
the manager with status 2 and one line on stderr.

Plain dataclasses and not pydantic models: pydantic takes 80 ms and more before the sandbox could answer its first request.
"""

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, cast


class SandboxStartError(ValueError):
    """The start-up message is not one; the text names the field."""


@dataclass(frozen=True)
class SandboxLimits:
    """Bounds of one sandbox manager (architecture.md 5). Bytes, counts and seconds; all positive."""

    frame_bytes_max: int = 8 * 1024 * 1024
    event_bytes_max: int = 64 * 1024
    turn_events_bytes_max: int = 32 * 1024 * 1024
    prompt_bytes_max: int = 1024 * 1024
    final_message_bytes_max: int = 1024 * 1024
    stderr_tail_bytes: int = 8 * 1024
    snapshot_files_max: int = 50_000
    snapshot_bytes_max: int = 200_000_000
    snapshot_timeout_s: float = 20.0
    barrier_timeout_s: float = 5.0


@dataclass(frozen=True)
class SandboxStart:
    """What a manager is told at its start.

    `secret` is the per-sandbox secret (`tks_…`); `public_keys` are PEM texts by `kid`, which verify activation tokens;
    `workspace` is the absolute path inside the sandbox below which every cwd, HOME and Workdir lies.
    """

    secret: str = field(repr=False)
    generation: str
    public_keys: dict[str, str]
    workspace: str = "/workspace"
    limits: SandboxLimits = SandboxLimits()
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def to_json(self) -> bytes:
        """The message as it is written to the descriptor."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "SandboxStart":
        """Read a message; `SandboxStartError` names what is wrong with it and never quotes a value of it."""
        try:
            raw: object = json.loads(data)
        except ValueError:
            raise SandboxStartError("the start-up message is not JSON") from None
        values = _object(raw, "message", {"secret", "generation", "public_keys"}, {f.name for f in fields(cls)})
        keys = _object(values["public_keys"], "public_keys", set(), None)
        return cls(
            secret=_text(values["secret"], "secret", at_least=16),
            generation=_text(values["generation"], "generation", at_least=1),
            public_keys={kid: _text(pem, f"public_keys.{kid}", at_least=1) for kid, pem in keys.items()},
            workspace=_absolute(values.get("workspace", "/workspace")),
            limits=_limits(values.get("limits", {})),
            log_level=_level(values.get("log_level", "info")),
        )


def _object(value: object, name: str, required: set[str], known: set[str] | None) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SandboxStartError(f"{name} must be an object")
    result = cast("dict[str, Any]", value)
    for key in sorted(required - result.keys()):
        raise SandboxStartError(f"{name}: {key} is missing")
    for key in sorted(result.keys() - known) if known is not None else ():
        raise SandboxStartError(f"{name}: {key!r} is not known")
    return result


def _text(value: object, name: str, *, at_least: int) -> str:
    if not isinstance(value, str) or len(value) < at_least or "\0" in value:
        raise SandboxStartError(f"{name} must be a text of at least {at_least} characters")
    return value


def _absolute(value: object) -> str:
    path = _text(value, "workspace", at_least=1)
    if not path.startswith("/") or ".." in path.split("/"):
        raise SandboxStartError(f"workspace must be an absolute path without '..'; got {path!r}")
    return path


def _level(value: object) -> Literal["debug", "info", "warning", "error"]:
    if value in ("debug", "info", "warning", "error"):
        return value
    raise SandboxStartError(f"log_level must be debug, info, warning or error; got {value!r}")


def _limits(value: object) -> SandboxLimits:
    defaults = asdict(SandboxLimits())
    given = _object(value, "limits", set(), set(defaults))
    for name, number in given.items():
        fits = isinstance(number, int | float) and not isinstance(number, bool) and number > 0
        if not fits or (isinstance(defaults[name], int) and not isinstance(number, int)):
            raise SandboxStartError(f"limits.{name} must be a positive number; got {number!r}")
    return SandboxLimits(**given)
