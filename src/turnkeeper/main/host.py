"""Composition root of a host."""

from pathlib import Path

from turnkeeper.domain.settings import Limits, require_valid, timing_from_environ, with_lease_ttl
from turnkeeper.kit import log as logs
from turnkeeper.kit.log import get_logger
from turnkeeper.kit.procs import keep_signals_to_oneself, raise_descriptor_limit
from turnkeeper.main.environment import Environment
from turnkeeper.main.preflight import require_log_level
from turnkeeper.main.processes import die_with_parent
from turnkeeper.runner.host import run_host
from turnkeeper.runner.settings import HostSettings

log = get_logger("main.host")


def settings_from(environment: Environment, capacity: int, lease_ttl: int | None) -> HostSettings:
    """From the environment; `SettingRefused` names what is missing or wrong."""
    timing, warnings = timing_from_environ(environment.values)
    for line in warnings:
        log.warning("setting_ignored", text=line)
    if lease_ttl is not None:
        timing = with_lease_ttl(timing, str(lease_ttl))
    limits = Limits()
    require_valid(timing, limits)
    return HostSettings(
        name=environment.text("TURNKEEPER_HOST_NAME", "local"),
        token=environment.secret("TURNKEEPER_HOST_TOKEN"),
        control_url=environment.text("TURNKEEPER_CONTROL_URL", "http://127.0.0.1:8420"),
        provisioner_url=environment.text("TURNKEEPER_PROVISIONER_URL"),
        data=Path(environment.path("TURNKEEPER_DATA")),
        capacity=capacity,
        timing=timing,
        lease_ttl_s=lease_ttl,
        limits=limits,
        log_level=environment.text("TURNKEEPER_LOG_LEVEL", "info"),
    )


def run(capacity: int, lease_ttl: int | None) -> int:
    """Run until SIGTERM (drain) or SIGINT. The exit status."""
    die_with_parent()
    keep_signals_to_oneself()
    raise_descriptor_limit()
    environment = Environment.of_process()
    logs.configure("host", require_log_level(environment))
    settings = settings_from(environment, capacity, lease_ttl)
    return run_host(settings)
