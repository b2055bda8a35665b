"""The arithmetic of leases (protocol.md, section 8; L-01 to L-12). All values are seconds on one and the same clock.

    server    granted at T by the database clock; renewal refused after T + ttl and after the limits below
    worker    stops at sent(last confirmed) + ttl on its own suspend-proof clock: never after the server's moment
    sandbox   kills at mark + ttl, where the mark was read before the renewal was sent: at most kill_margin_s later
    reaper    acts reap_grace_s after the lease end

No order of two turns depends on any of this: clocks end the old turn, the barrier orders the new one.
"""

from dataclasses import dataclass
from enum import StrEnum

from turnkeeper.domain.settings import Timing


def lease_end(granted_at: float, timing: Timing) -> float:
    """When a lease granted or renewed at `granted_at` ends, on the granting clock."""
    return granted_at + timing.lease_ttl_s


def worker_stop_at(sent_at: float, timing: Timing) -> float:
    """When the worker stops by itself: one lifetime after its last confirmed renewal was *sent* (L-06)."""
    return sent_at + timing.lease_ttl_s


def sandbox_kill_at(mark: float, timing: Timing) -> float:
    """When the sandbox manager kills an activation that was last fed with `mark`, on the manager's clock (L-12)."""
    return mark + timing.lease_ttl_s


def cancel_lead(timing: Timing) -> float:
    """How long before the kill `session/cancel` goes out: min(4 s, (ttl - interval - HTTP timeout) / 2)."""
    return min(
        timing.cancel_lead_max_s, (timing.lease_ttl_s - timing.heartbeat_interval_s - timing.heartbeat_timeout_s) / 2
    )


def sandbox_cancel_at(mark: float, timing: Timing) -> float:
    """When the sandbox manager asks the agent to stop, so that the session can reach a boundary (116 s by default)."""
    return sandbox_kill_at(mark, timing) - cancel_lead(timing)


def mark_interval(timing: Timing) -> float:
    """How often the worker reads the manager's clock mark: 5 s, or a quarter of the slack where the lease is short.

    A mark that is older than the slack would have the switch fire although every renewal is healthy.
    """
    slack = timing.lease_ttl_s - timing.heartbeat_interval_s - timing.heartbeat_timeout_s
    return min(timing.mark_interval_max_s, slack / 4)


def reap_at(lease_ends_at: float, timing: Timing) -> float:
    """When the reaper may settle the attempt."""
    return lease_ends_at + timing.reap_grace_s


def execution_deadline(claimed_at: float, cancel_requested_at: float | None, timing: Timing) -> float:
    """When the turn must have ended: the execution timeout, lowered by a cancel to its grace."""
    deadline = claimed_at + timing.execution_timeout_s
    return deadline if cancel_requested_at is None else min(deadline, cancel_requested_at + timing.cancel_grace_s)


def renewal_limit(claimed_at: float, cancel_requested_at: float | None, timing: Timing) -> float:
    """After this moment no renewal is granted: execution deadline + drain, so that a hung child cannot renew for ever."""
    return execution_deadline(claimed_at, cancel_requested_at, timing) + timing.drain_s


class RenewalRefusal(StrEnum):
    """Why a renewal of the right attempt is refused all the same."""

    LEASE_EXPIRED = "lease_expired"
    EXECUTION_LIMIT = "execution_limit"
    CANCEL_LIMIT = "cancel_limit"


@dataclass(frozen=True)
class RenewalGranted:
    """The lease now ends at `expires_at`, never earlier than before."""

    expires_at: float


@dataclass(frozen=True)
class RenewalRefused:
    """The lease is refused for good (L-05)."""

    reason: RenewalRefusal


def decide_renewal(
    now: float, expires_at: float, claimed_at: float, cancel_requested_at: float | None, timing: Timing
) -> RenewalGranted | RenewalRefused:
    """Whether a renewal at `now` is granted. `now` is the database clock, read after the row lock is held (L-11).

    The new end is not cut down to the limit: the worker counts a full lifetime from the moment it sent the renewal, and
    must never be later than the server.
    """
    if now >= expires_at:
        return RenewalRefused(RenewalRefusal.LEASE_EXPIRED)
    if now >= renewal_limit(claimed_at, None, timing):
        return RenewalRefused(RenewalRefusal.EXECUTION_LIMIT)
    if now >= renewal_limit(claimed_at, cancel_requested_at, timing):
        return RenewalRefused(RenewalRefusal.CANCEL_LIMIT)
    return RenewalGranted(max(expires_at, lease_end(now, timing)))


def next_heartbeat_at(sent_at: float, finished_at: float, succeeded: bool, timing: Timing) -> float:
    """When the next heartbeat leaves after one that was sent at `sent_at` and ended at `finished_at`.

    A success goes by the normal cadence, counted from when it was sent (L-03); a failure is repeated after the retry
    delay, counted from its end (L-04). Never in the past.
    """
    if succeeded:
        return max(finished_at, sent_at + timing.heartbeat_interval_s)
    return finished_at + timing.heartbeat_retry_delay_s


def may_send(at: float, last_confirmed_sent_at: float, timing: Timing) -> bool:
    """Whether a heartbeat may still leave at `at`: only while the current lease can be valid (L-04)."""
    return at < worker_stop_at(last_confirmed_sent_at, timing)


def outage_schedule(timing: Timing) -> tuple[float, ...]:
    """When heartbeats leave, counted from the claim, if every one runs into its timeout.

    With the defaults 30, 45, 60, 75, 90 and 105 s (L-04). A schedule, not a guarantee.
    """
    times: list[float] = []
    at = timing.heartbeat_interval_s
    while may_send(at, 0.0, timing):
        times.append(at)
        at = next_heartbeat_at(at, at + timing.heartbeat_timeout_s, succeeded=False, timing=timing)
    return tuple(times)


def enough_for_one_heartbeat(now: float, sent_at: float, timing: Timing) -> bool:
    """Whether a child that is about to accept has time for one heartbeat before the lease that was sent for ends."""
    return now + timing.heartbeat_timeout_s < worker_stop_at(sent_at, timing)
