"""Settings: every relation refused with a line that names setting, value and bound."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.domain.errors import SettingRefused
from turnkeeper.domain.settings import (
    SANDBOX_ENVIRONMENT,
    Limits,
    SandboxTiming,
    Timing,
    require_valid,
    sandbox_timing_from_environ,
    timing_from_environ,
    with_lease_ttl,
)


def test_defaults_of_the_requirement() -> None:
    """Proves: L-01 (defaults)."""
    timing = Timing()
    assert (timing.lease_ttl_s, timing.heartbeat_interval_s, timing.heartbeat_timeout_s) == (120, 30, 10)
    assert (timing.heartbeat_retry_delay_s, timing.execution_timeout_s, timing.control_timeout_s) == (5, 3600, 30)
    assert (timing.cancel_grace_s, timing.drain_s, timing.reap_grace_s) == (10, 60, 2)
    assert (timing.receipt_tries, timing.receipt_timeout_s, timing.receipt_delay_s) == (3, 10, 5)
    assert timing.lease_ttl_floor_s == 40
    assert timing.validate() == ()
    assert timing_from_environ({}) == (timing, [])


def test_every_setting_of_the_environment() -> None:
    """Proves: L-01 (names)."""
    timing, warnings = timing_from_environ(
        {
            "AGENT_LEASE_TTL": "3",
            "AGENT_HEARTBEAT_INTERVAL": "0.5",
            "AGENT_HEARTBEAT_TIMEOUT": " 1 ",
            "AGENT_HEARTBEAT_RETRY_DELAY": "0.25",
            "AGENT_EXECUTION_TIMEOUT": "1e3",
        }
    )
    assert warnings == []
    assert timing == replace(
        Timing(),
        lease_ttl_s=3,
        heartbeat_interval_s=0.5,
        heartbeat_timeout_s=1,
        heartbeat_retry_delay_s=0.25,
        execution_timeout_s=1000,
    )


@pytest.mark.parametrize("text", ["40", "39.9", "1", "0", "-5", " 40.0 "])
def test_a_short_lease_ttl_of_the_environment_is_ignored_with_a_warning(text: str) -> None:
    """Proves: L-09. At or below 40 s: the default, and a warning that names setting, value and bound."""
    timing, (warning,) = timing_from_environ({"AGENT_LEASE_TTL": text})
    assert timing == Timing()
    for part in ("AGENT_LEASE_TTL", f"{float(text):g}", "30 + 10 = 40", "ignored", "default 120"):
        assert part in warning
    assert timing_from_environ({"AGENT_LEASE_TTL": "40.001"})[0].lease_ttl_s == 40.001


def test_a_default_that_is_too_short_as_well_refuses_the_start() -> None:
    """Proves: L-09. The interval was raised so far that 120 s is no valid lease either: nothing is adjusted."""
    for environ in (
        {"AGENT_HEARTBEAT_INTERVAL": "110"},
        {"AGENT_HEARTBEAT_INTERVAL": "110", "AGENT_LEASE_TTL": "100"},
        {"AGENT_HEARTBEAT_TIMEOUT": "500"},
    ):
        with pytest.raises(SettingRefused, match=r"lease_ttl_s is 120; it must be greater than .* s$"):
            timing_from_environ(environ)
    timing, warnings = timing_from_environ({"AGENT_HEARTBEAT_INTERVAL": "110", "AGENT_LEASE_TTL": "121"})
    assert (timing.lease_ttl_s, warnings) == (121, [])


@pytest.mark.parametrize("text", ["", "x", "nan", "inf", "-inf", "1_000", "12s", "1e99", "١٢٣x"])
@pytest.mark.parametrize("name", ["AGENT_LEASE_TTL", "AGENT_HEARTBEAT_INTERVAL", "AGENT_EXECUTION_TIMEOUT"])
def test_what_is_no_number_is_refused(name: str, text: str) -> None:
    """House style 17: refused, with the setting and its value."""
    with pytest.raises(SettingRefused) as refused:
        timing_from_environ({name: text})
    assert refused.value.lines == (
        f"{name} is {text!r}; it must be a positive number of seconds, at most 315360000 (ten years)",
    )


def test_all_complaints_at_once() -> None:
    """One line for each."""
    with pytest.raises(SettingRefused) as refused:
        timing_from_environ({"AGENT_HEARTBEAT_INTERVAL": "0", "AGENT_EXECUTION_TIMEOUT": "-1"})
    assert [line.split()[0] for line in refused.value.lines] == ["AGENT_HEARTBEAT_INTERVAL", "AGENT_EXECUTION_TIMEOUT"]


@pytest.mark.parametrize("text", ["40", "0", "-1", "39"])
def test_lease_ttl_of_the_command_line_is_refused(text: str) -> None:
    """Proves: L-09. `--lease-ttl` at or below the floor is an error, never ignored."""
    with pytest.raises(SettingRefused, match=rf"--lease-ttl is {text}; it must be greater than .* = 40 s"):
        with_lease_ttl(Timing(), text)


def test_lease_ttl_of_the_command_line() -> None:
    """Above the floor it is taken; what is no number is refused by name."""
    assert with_lease_ttl(Timing(), "41").lease_ttl_s == 41
    with pytest.raises(SettingRefused, match="--lease-ttl is 'soon'"):
        with_lease_ttl(Timing(), "soon")


@pytest.mark.parametrize("name", [field.name for field in fields(Timing)])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_no_duration_may_be_zero_negative_or_endless(name: str, value: float) -> None:
    """House style 17: each field by name."""
    (line,) = replace(Timing(), **{name: value}).validate()
    assert line.startswith(f"{name} is ")


def test_the_reaper_never_acts_before_the_agent_is_stopped() -> None:
    """Protocol, section 8: sandbox at most 1 s late, reaper 2 s; a grace within the margin is refused."""
    (line,) = replace(Timing(), reap_grace_s=1).validate()
    assert line.startswith("reap_grace_s is 1; it must be greater than kill_margin_s = 1")
    with pytest.raises(SettingRefused):
        require_valid(replace(Timing(), reap_grace_s=1))


@given(st.floats(0.001, 1e6), st.floats(0.001, 1e6), st.floats(-1e6, 1e6))
def test_the_environment_never_yields_a_broken_relation(interval: float, timeout: float, ttl: float) -> None:
    """Proves: L-01, L-09. Whatever is set: a valid timing or a refusal."""
    environ = {
        "AGENT_HEARTBEAT_INTERVAL": repr(interval),
        "AGENT_HEARTBEAT_TIMEOUT": repr(timeout),
        "AGENT_LEASE_TTL": repr(ttl),
    }
    if interval + timeout >= 120 and ttl <= interval + timeout:
        with pytest.raises(SettingRefused):
            timing_from_environ(environ)
        return
    timing, warnings = timing_from_environ(environ)
    assert timing.validate() == ()
    assert timing.lease_ttl_s > interval + timeout
    assert (timing.lease_ttl_s == ttl) == (not warnings) or ttl == 120


def test_sandbox_defaults_of_the_requirement() -> None:
    """Proves: C-06 (defaults and relation)."""
    timing = SandboxTiming()
    assert (timing.release_lock_timeout_s, timing.delete_timeout_s, timing.cleanup_timeout_s) == (30, 120, 155)
    assert timing.validate() == ()
    assert sandbox_timing_from_environ({}) == timing


@pytest.mark.parametrize("variable", list(SANDBOX_ENVIRONMENT.values()))
@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "x", "1e3", "+5", "٣", "²", "9" * 30])
def test_sandbox_settings_are_positive_integers(variable: str, text: str) -> None:
    """Proves: C-06. Anything else is refused at startup."""
    with pytest.raises(SettingRefused) as refused:
        sandbox_timing_from_environ({variable: text})
    assert refused.value.lines == (
        f"{variable} is {text!r}; it must be a positive integer of seconds, at most 315360000 (ten years)",
    )


def test_cleanup_must_exceed_its_parts() -> None:
    """Proves: C-06. 30 + 120 = 150 is not enough, 151 is."""
    with pytest.raises(SettingRefused, match=r"SANDBOX_RUNTIME_CLEANUP_TIMEOUT_SECONDS is 150.*= 150"):
        sandbox_timing_from_environ({"SANDBOX_RUNTIME_CLEANUP_TIMEOUT_SECONDS": "150"})
    timing = sandbox_timing_from_environ({"SANDBOX_RUNTIME_CLEANUP_TIMEOUT_SECONDS": "151"})
    assert timing.cleanup_timeout_s == 151
    with pytest.raises(SettingRefused, match="SANDBOX_RUNTIME_CLEANUP_TIMEOUT_SECONDS is 155"):
        sandbox_timing_from_environ({"SANDBOX_PROVIDER_RELEASE_LOCK_TIMEOUT_SECONDS": "35"})


def test_idle_is_never_below_command_plus_30() -> None:
    """Proves: K-06 (the bound)."""
    with pytest.raises(SettingRefused, match=r"SANDBOX_IDLE_TIMEOUT_SECONDS is 629; it must be at least .* = 630"):
        sandbox_timing_from_environ({"SANDBOX_IDLE_TIMEOUT_SECONDS": "629"})
    assert sandbox_timing_from_environ({"SANDBOX_IDLE_TIMEOUT_SECONDS": "630"}).idle_timeout_s == 630


@pytest.mark.parametrize("name", [field.name for field in fields(SandboxTiming)])
def test_no_sandbox_duration_may_be_zero(name: str) -> None:
    """Built in code it is checked as well."""
    (line,) = replace(SandboxTiming(), **{name: 0}).validate()
    assert line.endswith("is 0; it must be a positive integer")


def test_limits_of_the_architecture() -> None:
    """Architecture, section 5, and T-09 (defaults)."""
    limits = Limits()
    assert limits.validate() == ()
    assert (limits.frame_bytes_max, limits.event_bytes_max, limits.turn_events_bytes_max) == (
        8 << 20,
        64 << 10,
        32 << 20,
    )
    assert (limits.prompt_bytes_max, limits.stderr_tail_bytes, limits.spare_age_s) == (1 << 20, 8 << 10, 600)
    assert (limits.tree_depth_max, limits.tree_size_max, limits.queue_max, limits.releases_max) == (5, 50, 100, 3)
    assert (limits.snapshot_s, limits.snapshot_bytes_max, limits.snapshot_files_max) == (20, 200_000_000, 50_000)
    assert replace(limits, queue_max=0).validate() == ("queue_max is 0; it must be a positive number",)
