"""Lease arithmetic with the requirements' own numbers."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from turnkeeper.domain.lease import (
    RenewalGranted,
    RenewalRefusal,
    RenewalRefused,
    cancel_lead,
    decide_renewal,
    enough_for_one_heartbeat,
    execution_deadline,
    lease_end,
    mark_interval,
    may_send,
    next_heartbeat_at,
    outage_schedule,
    reap_at,
    renewal_limit,
    sandbox_cancel_at,
    sandbox_kill_at,
    worker_stop_at,
)
from turnkeeper.domain.settings import Timing

DEFAULT = Timing()
seconds = st.floats(min_value=0.05, max_value=5000, allow_nan=False)


@st.composite
def timings(draw: st.DrawFn) -> Timing:
    """Any timing that the product would start with."""
    interval, timeout, delay = draw(seconds), draw(seconds), draw(seconds)
    timing = replace(
        DEFAULT,
        heartbeat_interval_s=interval,
        heartbeat_timeout_s=timeout,
        heartbeat_retry_delay_s=delay,
        lease_ttl_s=interval + timeout + draw(seconds),
    )
    assume(not timing.validate())
    return timing


def test_outage_schedule_of_the_requirement() -> None:
    """Proves: L-04 (the schedule). Requests leave at 30, 45, 60, 75, 90 and 105 s; none at 120 s."""
    assert outage_schedule(DEFAULT) == (30, 45, 60, 75, 90, 105)


def test_the_old_cadence_is_another_schedule() -> None:
    """L-13: before L-04 requests left at 30, 60, 90 and 120 s; a retry after a whole interval is not this one."""
    assert outage_schedule(replace(DEFAULT, heartbeat_retry_delay_s=20)) == (30, 60, 90)


def test_numbers_of_the_defaults() -> None:
    """Proves: L-12 (116 s), L-06 (120 s), L-01 (limits)."""
    assert worker_stop_at(0, DEFAULT) == 120
    assert sandbox_kill_at(0, DEFAULT) == 120
    assert cancel_lead(DEFAULT) == 4
    assert sandbox_cancel_at(0, DEFAULT) == 116
    assert sandbox_cancel_at(0, DEFAULT) >= outage_schedule(DEFAULT)[-1] + DEFAULT.heartbeat_timeout_s
    assert reap_at(lease_end(0, DEFAULT), DEFAULT) == 122
    assert mark_interval(DEFAULT) == 5
    assert execution_deadline(0, None, DEFAULT) == 3600
    assert renewal_limit(0, None, DEFAULT) == 3660
    assert execution_deadline(0, 100, DEFAULT) == 110
    assert renewal_limit(0, 100, DEFAULT) == 170
    assert renewal_limit(0, 3599, DEFAULT) == 3660, "a late cancel never gives more time"


def test_cancel_lead_of_a_short_lease() -> None:
    """Proves: L-12. min(4 s, (ttl - interval - timeout) / 2)."""
    assert cancel_lead(replace(DEFAULT, lease_ttl_s=44)) == 2
    assert cancel_lead(replace(DEFAULT, lease_ttl_s=47)) == 3.5
    assert cancel_lead(replace(DEFAULT, lease_ttl_s=48)) == 4
    assert cancel_lead(replace(DEFAULT, lease_ttl_s=49)) == 4


def test_a_success_puts_the_cadence_back() -> None:
    """Proves: L-03. After failures, the first success is followed by a whole interval again."""
    assert next_heartbeat_at(30, 30.1, succeeded=True, timing=DEFAULT) == 60
    assert next_heartbeat_at(30, 40, succeeded=False, timing=DEFAULT) == 45
    assert next_heartbeat_at(45, 45.2, succeeded=True, timing=DEFAULT) == 75
    assert next_heartbeat_at(30, 70, succeeded=True, timing=DEFAULT) == 70, "never in the past"


def test_no_heartbeat_leaves_at_or_after_the_end() -> None:
    """Proves: L-04, L-06. At one lifetime since the last confirmed send it is over."""
    assert may_send(119.999, 0, DEFAULT)
    assert not may_send(120, 0, DEFAULT)


@pytest.mark.parametrize(
    ("now", "cancelled_at", "expires_at", "wanted"),
    [
        (10, None, 120, RenewalGranted(130)),
        (119.999, None, 120, RenewalGranted(239.999)),
        (120, None, 120, RenewalRefused(RenewalRefusal.LEASE_EXPIRED)),
        (500, None, 120, RenewalRefused(RenewalRefusal.LEASE_EXPIRED)),
        (3659, None, 3700, RenewalGranted(3779)),
        (3660, None, 3700, RenewalRefused(RenewalRefusal.EXECUTION_LIMIT)),
        (169, 100, 200, RenewalGranted(289)),
        (170, 100, 200, RenewalRefused(RenewalRefusal.CANCEL_LIMIT)),
    ],
)
def test_renewal_at_the_edges(
    now: float, cancelled_at: float | None, expires_at: float, wanted: RenewalGranted | RenewalRefused
) -> None:
    """Proves: L-11, L-10 (arithmetic). Refused at the lease's end, at claim + 3,660 s, and at cancel + 70 s; granted through cancel until then."""
    assert decide_renewal(now, expires_at, 0, cancelled_at, DEFAULT) == wanted


@given(timings(), st.lists(st.floats(min_value=0.01, max_value=60), min_size=10, max_size=10))
def test_renewals_never_lower_the_expiry(timing: Timing, steps: list[float]) -> None:
    """Case: F02. Ten renewals in a row never lower the expiry, also when the database clock goes back."""
    now, expires_at = 0.0, lease_end(0, timing)
    for index, step in enumerate(steps):
        now = max(0.0, now + (step if index % 3 else -step))
        answer = decide_renewal(now, expires_at, 0, None, timing)
        if isinstance(answer, RenewalRefused):
            return
        assert answer.expires_at >= expires_at
        expires_at = answer.expires_at


@given(timings(), seconds, st.floats(min_value=0, max_value=3600), seconds)
def test_order_of_the_ends(timing: Timing, sent_at: float, delay_s: float, mark_age_s: float) -> None:
    """Proves: L-06, L-12 (arithmetic). Worker before server before reaper; cancel before kill; kill at most a second late.

    One clock for all: the renewal is sent at `sent_at`, granted `delay_s` later, its mark was read `mark_age_s` before.
    """
    granted = decide_renewal(sent_at + delay_s, sent_at + delay_s + 1, sent_at, None, timing)
    assert isinstance(granted, RenewalGranted)
    stop, kill = worker_stop_at(sent_at, timing), sandbox_kill_at(sent_at - mark_age_s, timing)
    assert stop <= granted.expires_at
    assert kill <= stop
    assert sandbox_cancel_at(sent_at - mark_age_s, timing) < kill
    assert kill + timing.kill_margin_s < reap_at(granted.expires_at, timing)


@given(timings())
def test_schedule_of_any_timing(timing: Timing) -> None:
    """Proves: L-04. The first leaves after one interval, each within the lease, each a timeout and a delay later."""
    times = outage_schedule(timing)
    assert times[0] == timing.heartbeat_interval_s
    assert times[-1] < timing.lease_ttl_s
    gap = timing.heartbeat_timeout_s + timing.heartbeat_retry_delay_s
    assert all(later - earlier == pytest.approx(gap) for earlier, later in itertools.pairwise(times))
    assert times[-1] + gap == pytest.approx(timing.lease_ttl_s) or times[-1] + gap > timing.lease_ttl_s


@given(timings())
def test_a_healthy_turn_is_never_cancelled_by_its_switch(timing: Timing) -> None:
    """L-12: with a mark as old as it may be, the next confirmation still comes before `session/cancel`."""
    fed_with = -mark_interval(timing)
    confirmed = timing.heartbeat_interval_s + timing.heartbeat_timeout_s
    assert sandbox_cancel_at(fed_with, timing) > confirmed


def test_enough_for_one_heartbeat() -> None:
    """Protocol, section 4, step 2: a child accepts only with time for one whole heartbeat."""
    assert enough_for_one_heartbeat(109.9, 0, DEFAULT)
    assert not enough_for_one_heartbeat(110, 0, DEFAULT)
