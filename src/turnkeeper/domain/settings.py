"""The settings that the protocol's arithmetic rests on, and the relations between them (L-01, L-09, C-06, K-06).

A configuration that breaks a relation is refused with one line for each that names the setting, its value and the
bound. The one exception is `AGENT_LEASE_TTL`, which is ignored with a warning where it is too short (L-09).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from turnkeeper.domain.errors import OptionRefused, SettingRefused

ENV_LEASE_TTL = "AGENT_LEASE_TTL"
ENV_HEARTBEAT_INTERVAL = "AGENT_HEARTBEAT_INTERVAL"
ENV_HEARTBEAT_TIMEOUT = "AGENT_HEARTBEAT_TIMEOUT"
ENV_HEARTBEAT_RETRY_DELAY = "AGENT_HEARTBEAT_RETRY_DELAY"
ENV_EXECUTION_TIMEOUT = "AGENT_EXECUTION_TIMEOUT"


@dataclass(frozen=True)
class Timing:
    """Durations of the turn protocol, in seconds. Lease lifetime and execution timeout are separate limits (L-01)."""

    lease_ttl_s: float = 120
    heartbeat_interval_s: float = 30
    heartbeat_timeout_s: float = 10
    heartbeat_retry_delay_s: float = 5
    execution_timeout_s: float = 3600
    control_timeout_s: float = 30
    cancel_grace_s: float = 10
    drain_s: float = 60
    reap_grace_s: float = 2
    kill_margin_s: float = 1
    """The sandbox manager kills at most this much after the worker's own end of the lease (L-12)."""
    cancel_lead_max_s: float = 4
    mark_interval_max_s: float = 5
    """How often the worker reads the manager's clock mark; shorter where the lease is short."""
    receipt_tries: int = 3
    receipt_timeout_s: float = 10
    receipt_delay_s: float = 5
    """Admission and settlement receipts (F-04)."""
    work_wait_s: float = 25
    claim_repeat_s: float = 2
    """An empty answer to a claim is repeated within this while ready runs exist."""
    barrier_s: float = 5
    """`take` shows death within this, or the manager ends the sandbox."""
    recovery_bound_s: float = 600
    unclaimed_bound_s: float = 600
    """A ready run that no live host could claim for this long fails."""
    input_deadline_s: float = 86_400
    discovery_s: float = 60
    stream_heartbeat_s: float = 10
    host_heartbeat_s: float = 10
    host_silent_s: float = 60

    def validate(self) -> tuple[str, ...]:
        """One line per broken relation; empty when all hold."""
        lines = [
            f"{field.name} is {_number(getattr(self, field.name))}; it must be a positive number"
            for field in fields(self)
            if not _positive(getattr(self, field.name))
        ]
        if lines:
            return tuple(lines)
        if self.lease_ttl_s <= self.lease_ttl_floor_s:
            lines.append(_too_short("lease_ttl_s", self.lease_ttl_s, self))
        if self.kill_margin_s >= self.reap_grace_s:
            lines.append(
                f"reap_grace_s is {_number(self.reap_grace_s)}; it must be greater than kill_margin_s = "
                f"{_number(self.kill_margin_s)}, or the reaper would act before the agent is stopped"
            )
        if self.host_silent_s <= self.host_heartbeat_s:
            lines.append(
                f"host_silent_s is {_number(self.host_silent_s)}; it must be greater than host_heartbeat_s = "
                f"{_number(self.host_heartbeat_s)}"
            )
        return tuple(lines)

    @property
    def lease_ttl_floor_s(self) -> float:
        """A lease lifetime must be greater than this: one interval and one request that runs into its timeout."""
        return self.heartbeat_interval_s + self.heartbeat_timeout_s


@dataclass(frozen=True)
class SandboxTiming:
    """Durations of the provisioner and of runtime cleanup, in whole seconds (C-06, K-06)."""

    release_lock_timeout_s: int = 30
    delete_timeout_s: int = 120
    cleanup_timeout_s: int = 155
    idle_timeout_s: int = 1800
    command_timeout_s: int = 600
    """One setup command."""
    idle_backstop_factor: int = 10
    """For retained scopes the provisioner's own limit is this many times as long as the control plane's."""

    def validate(self) -> tuple[str, ...]:
        """One line per broken relation; empty when all hold."""
        lines = [
            f"{_sandbox_name(field.name)} is {getattr(self, field.name)}; it must be a positive integer"
            for field in fields(self)
            if getattr(self, field.name) <= 0
        ]
        if lines:
            return tuple(lines)
        parts = self.release_lock_timeout_s + self.delete_timeout_s
        if self.cleanup_timeout_s <= parts:
            lines.append(
                f"{_sandbox_name('cleanup_timeout_s')} is {self.cleanup_timeout_s}; it must be greater than "
                f"{_sandbox_name('release_lock_timeout_s')} + {_sandbox_name('delete_timeout_s')} = {parts}"
            )
        if self.idle_timeout_s < self.command_timeout_s + IDLE_ABOVE_COMMAND_S:
            lines.append(
                f"{_sandbox_name('idle_timeout_s')} is {self.idle_timeout_s}; it must be at least "
                f"{_sandbox_name('command_timeout_s')} + {IDLE_ABOVE_COMMAND_S} = "
                f"{self.command_timeout_s + IDLE_ABOVE_COMMAND_S}"
            )
        return tuple(lines)


IDLE_ABOVE_COMMAND_S = 30

SANDBOX_ENVIRONMENT: Mapping[str, str] = {
    "release_lock_timeout_s": "SANDBOX_PROVIDER_RELEASE_LOCK_TIMEOUT_SECONDS",
    "cleanup_timeout_s": "SANDBOX_RUNTIME_CLEANUP_TIMEOUT_SECONDS",
    "delete_timeout_s": "SANDBOX_PROVISIONER_DELETE_TIMEOUT_SECONDS",
    "idle_timeout_s": "SANDBOX_IDLE_TIMEOUT_SECONDS",
    "command_timeout_s": "SANDBOX_COMMAND_TIMEOUT_SECONDS",
}


@dataclass(frozen=True)
class Limits:
    """What the product takes at most (architecture.md, section 5). Bytes, counts and seconds."""

    frame_bytes_max: int = 8 * 1024 * 1024
    event_bytes_max: int = 64 * 1024
    turn_events_bytes_max: int = 32 * 1024 * 1024
    prompt_bytes_max: int = 1024 * 1024
    tree_depth_max: int = 5
    tree_size_max: int = 50
    queue_max: int = 100
    releases_max: int = 3
    resumes_max: int = 3
    snapshot_s: float = 20
    snapshot_bytes_max: int = 200 * 1000 * 1000
    snapshot_files_max: int = 50_000
    stderr_tail_bytes: int = 8 * 1024
    journal_bytes_max: int = 1024 * 1024
    definition_bytes_max: int = 256 * 1024
    spare_age_s: float = 600
    trees_per_host: int = 8
    trees_per_owner: int = 8

    def validate(self) -> tuple[str, ...]:
        """One line per value that makes no sense; empty when all do."""
        return tuple(
            f"{field.name} is {_number(getattr(self, field.name))}; it must be a positive number"
            for field in fields(self)
            if not _positive(getattr(self, field.name))
        )


def require_valid(*settings: Timing | SandboxTiming | Limits) -> None:
    """Raise `SettingRefused` with every line of every group."""
    lines = [line for group in settings for line in group.validate()]
    if lines:
        raise SettingRefused(*lines)


def timing_from_environ(environ: Mapping[str, str], base: Timing = Timing()) -> tuple[Timing, list[str]]:
    """The timing that the environment asks for, and warnings.

    `AGENT_LEASE_TTL` at or below interval + timeout is ignored with a warning and the default of `base` used (L-09);
    everything else that breaks a relation, that default included, raises `SettingRefused`.
    """
    lines: list[str] = []
    values = {
        name: _read_seconds(environ, variable, lines)
        for name, variable in (
            ("heartbeat_interval_s", ENV_HEARTBEAT_INTERVAL),
            ("heartbeat_timeout_s", ENV_HEARTBEAT_TIMEOUT),
            ("heartbeat_retry_delay_s", ENV_HEARTBEAT_RETRY_DELAY),
            ("execution_timeout_s", ENV_EXECUTION_TIMEOUT),
        )
    }
    wanted_ttl = _read_seconds(environ, ENV_LEASE_TTL, lines, any_sign=True)
    if lines:
        raise SettingRefused(*lines)
    timing = replace(base, **{name: value for name, value in values.items() if value is not None})
    warnings: list[str] = []
    if wanted_ttl is not None:
        if wanted_ttl > timing.lease_ttl_floor_s:
            timing = replace(timing, lease_ttl_s=wanted_ttl)
        else:
            warnings.append(
                f"{_too_short(ENV_LEASE_TTL, wanted_ttl, timing)}; "
                f"it is ignored and the default {_number(base.lease_ttl_s)} is used"
            )
    require_valid(timing)
    return timing, warnings


def with_lease_ttl(timing: Timing, text: str) -> Timing:
    """`timing` with the value of `--lease-ttl`; `OptionRefused` where that is no number or too short (L-09)."""
    value = _parse_seconds(text)
    if value is None:
        raise OptionRefused(f"--lease-ttl is {text!r}; it must be a number of seconds")
    if value <= timing.lease_ttl_floor_s:
        raise OptionRefused(_too_short("--lease-ttl", value, timing))
    return replace(timing, lease_ttl_s=value)


def sandbox_timing_from_environ(environ: Mapping[str, str], base: SandboxTiming = SandboxTiming()) -> SandboxTiming:
    """The sandbox durations that the environment asks for; `SettingRefused` for anything but positive integers."""
    lines: list[str] = []
    values: dict[str, int] = {}
    for name, variable in SANDBOX_ENVIRONMENT.items():
        text = environ.get(variable)
        if text is None:
            continue
        stripped = text.strip()
        if stripped.isascii() and stripped.isdigit() and 0 < int(stripped) <= SECONDS_MAX:
            values[name] = int(stripped)
        else:
            lines.append(f"{variable} is {text!r}; it must be a positive integer of seconds, {_AT_MOST}")
    if lines:
        raise SettingRefused(*lines)
    timing = replace(base, **values)
    require_valid(timing)
    return timing


SECONDS_MAX = 10 * 365 * 86_400
"""Ten years: what is longer is a mistake, and would overflow timestamps."""

_AT_MOST = f"at most {SECONDS_MAX} (ten years)"


def _read_seconds(
    environ: Mapping[str, str], variable: str, lines: list[str], *, any_sign: bool = False
) -> float | None:
    text = environ.get(variable)
    if text is None:
        return None
    value = _parse_seconds(text)
    if value is None or (value <= 0 and not any_sign):
        lines.append(f"{variable} is {text!r}; it must be a positive number of seconds, {_AT_MOST}")
        return None
    return value


def _parse_seconds(text: str) -> float | None:
    try:
        value = float(text.strip())
    except ValueError:
        return None
    return value if math.isfinite(value) and value <= SECONDS_MAX and "_" not in text else None


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _too_short(name: str, value: float, timing: Timing) -> str:
    return (
        f"{name} is {_number(value)}; it must be greater than heartbeat interval + heartbeat timeout = "
        f"{_number(timing.heartbeat_interval_s)} + {_number(timing.heartbeat_timeout_s)} = "
        f"{_number(timing.lease_ttl_floor_s)} s"
    )


def _sandbox_name(name: str) -> str:
    return SANDBOX_ENVIRONMENT.get(name, name)


def _number(value: float) -> str:
    return f"{value:.10g}"
