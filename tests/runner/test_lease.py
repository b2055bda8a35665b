"""The lease as the worker holds it: the real heartbeat thread and HTTP client, on a clock that the test moves (L-02 to L-08)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

import pytest

from runner.behaviours import Behaviour, Hangs, Refuses, Reply, Trickles
from runner.driving import Driven, drive
from runner.hosting import until
from runner.passing import Notes, pass_time, settled
from runner.peer_server import Handler
from runner.peers import Peers, stay_silent
from turnkeeper.domain.settings import Timing
from turnkeeper.kit.clock import ManualClock
from turnkeeper.runner.lease import Lease, LeaseVerdict

BESIDE = ("heartbeat", "signals", "mark", "feed", "events", "events_stream")
DEFAULTS = Timing()
OLD_CADENCE = Timing(heartbeat_retry_delay_s=20)
"""Requests at 30, 60, 90 and 120 s only, as it was before L-04: a failure at its 10 s timeout, then 20 s of nothing."""


@dataclass(frozen=True)
class Sees(Behaviour):
    """Notes the manager's clock in the moment in which the renewal arrives."""

    seen: list[int]

    def respond(self, handler: Handler, usual: Callable[[], Reply]) -> None:
        self.seen.append(handler.peers.mark_ms)
        handler.send_reply(usual())


@pytest.fixture
def clock() -> ManualClock:
    """Stands still until it is moved."""
    return ManualClock()


@pytest.fixture
def silent(peers: Peers, clock: ManualClock) -> Iterator[Driven]:
    """A turn of the default timing whose agent says nothing, at the moment of its claim."""
    peers.on_prompt = stay_silent
    driven = drive(peers, DEFAULTS, clock)
    peers.wait_for("prompt")
    yield driven
    if driven.thread.is_alive():
        peers.settle_turn()
        driven.thread.join(1)
        peers.closing.set()
        driven.thread.join(10)


def test_a_confirmation_that_comes_too_late_revives_nothing(clock: ManualClock) -> None:
    """Proves: L-05, L-06, L-08. After a pause of the machine the answer may be seen before the watchdog wakes."""
    lost: list[bool] = []
    lease = Lease(clock.monotonic(), DEFAULTS, clock, lambda: lost.append(True))
    sent_at = clock.monotonic()
    clock.advance(119)
    assert lease.confirm(clock.monotonic(), 120)
    clock.advance(120)
    assert not lease.confirm(sent_at + 119, 120)
    assert lease.verdict is LeaseVerdict.EXPIRED
    assert not lease.confirm(clock.monotonic(), 120)
    assert lost == [True]


def test_an_older_confirmation_does_not_shorten(clock: ManualClock) -> None:
    """Answers may come in another order than they were asked for."""
    lease = Lease(clock.monotonic(), DEFAULTS, clock, lambda: None)
    began = clock.monotonic()
    clock.advance(60)
    lease.confirm(clock.monotonic(), 120)
    lease.confirm(began, 120)
    assert lease.ends_at == began + 180


def test_a_silent_turn_stays_leased_over_many_lease_periods(peers: Peers, clock: ManualClock, silent: Driven) -> None:
    """Proves: L-02, L-03, L-12. Six minutes without any output: one renewal each 30 s, each feeding the switch."""
    assert pass_time(silent, clock, peers, 360) == 360
    settled(silent, clock, peers)
    assert len(peers.of("heartbeat")) == 12
    peers.wait_for("feed", 12)  # it follows its renewal's answer
    assert len(peers.of("feed")) == 12
    peers.settle_turn()
    assert silent.wait() == 0
    assert peers.of("finish")[0].body["status"] == "completed"


def test_a_wall_clock_that_jumps_changes_nothing(peers: Peers, clock: ManualClock, silent: Driven) -> None:
    """Case: F12. Proves: L-08. Ten minutes on, back, and an hour that comes twice: no deadline is of the wall clock."""
    passed = 0.0
    for hours in (1 / 6, -1 / 6, -1, 24 * 365):
        clock.set_wall(clock.utcnow() + timedelta(hours=hours))
        passed += pass_time(silent, clock, peers, 60)
    assert passed == 240
    settled(silent, clock, peers)
    assert len(peers.of("heartbeat")) == 8
    assert not silent.worker.flags.lost
    peers.always["heartbeat"] = Hangs()
    clock.set_wall(clock.utcnow() - timedelta(days=1))
    assert pass_time(silent, clock, peers, 200) == 120


def test_the_fed_mark_is_one_from_before_the_renewal_was_sent(peers: Peers, clock: ManualClock, silent: Driven) -> None:
    """Proves: L-12. A delayed feed can only shorten."""
    seen: list[int] = []
    peers.on["heartbeat"].append(Sees(seen))
    pass_time(silent, clock, peers, 30)
    feed = peers.wait_for("feed")
    assert feed.body["mark_ms"] <= seen[0]
    assert feed.body["lease_ttl_ms"] == 120_000
    assert not silent.worker.flags.lost


def test_failed_renewals_leave_by_the_schedule_until_the_lease_is_over(
    peers: Peers, clock: ManualClock, silent: Driven
) -> None:
    """Proves: L-04, L-06. With the defaults at 30, 45, 60, 75, 90 and 105 s; at 120 s the worker stops by itself."""
    began = clock.monotonic()
    times: list[float] = []
    peers.always["heartbeat"] = Notes(times, clock, Hangs())
    assert pass_time(silent, clock, peers, 200, step_s=1) == 120
    assert [at - began for at in times] == [30, 45, 60, 75, 90, 105]
    assert silent.wait() == 3
    assert peers.names(without=BESIDE)[-1] == "stop"
    assert peers.of("finish") == []


class RecoversAt(Behaviour):
    """Every read runs into its timeout until the clock says `at`; from then on all is well."""

    def __init__(self, clock: ManualClock, at: float) -> None:
        self._clock = clock
        self._at = at

    def respond(self, handler: Handler, usual: Callable[[], Reply]) -> None:
        behaviour = Hangs() if self._clock.monotonic() < self._at else Behaviour()
        behaviour.respond(handler, usual)


@pytest.mark.parametrize(
    ("recovers_at", "timing", "kept"),
    [
        (0, DEFAULTS, True),
        (100, DEFAULTS, True),
        (105, DEFAULTS, True),
        (105, OLD_CADENCE, False),
    ],
    ids=["healthy", "recovers at 100 s", "recovers at 105 s", "the cadence of old"],
)
def test_a_silent_turn_of_six_minutes_outlives_an_outage(
    peers: Peers, clock: ManualClock, recovers_at: float, timing: Timing, *, kept: bool
) -> None:
    """Proves: L-13. Real heartbeat thread, stream loop and HTTP client; the last case shows that the test can fail.

    It reproduces a mechanism, not the cause of a past incident.
    """
    peers.on_prompt = stay_silent
    peers.always["heartbeat"] = RecoversAt(clock, clock.monotonic() + recovers_at)
    driven = drive(peers, timing, clock)
    peers.wait_for("prompt")
    passed = pass_time(driven, clock, peers, 360, step_s=1)
    if kept:
        assert passed == 360
        peers.settle_turn()
        assert driven.wait() == 0
        assert peers.of("finish")[0].body["status"] == "completed"
    else:
        assert passed == 120
        assert driven.wait() == 3
        assert peers.of("finish") == []


@pytest.mark.parametrize("status", [409, 410, 401, 403, 404])
def test_a_refused_renewal_stops_the_agent_and_nothing_more_is_written(
    peers: Peers, clock: ManualClock, silent: Driven, status: int
) -> None:
    """Proves: L-05, L-06. One refusal is enough, and is not asked about again."""
    peers.always["heartbeat"] = Refuses(status, "some_code")
    pass_time(silent, clock, peers, 30)
    assert silent.wait() == 3
    assert len(peers.of("heartbeat")) == 1
    assert peers.names(without=BESIDE)[-2:] == ["prompt", "stop"]


def test_an_outage_that_ends_in_time_is_got_over(peers: Peers, clock: ManualClock, silent: Driven) -> None:
    """Proves: L-03, L-04. After a failure the retry delay, after a success the normal interval."""
    began = clock.monotonic()
    times: list[float] = []
    peers.on["heartbeat"].extend([Notes(times, clock, Refuses(503, "not_ready"))] * 2)
    peers.always["heartbeat"] = Notes(times, clock, Behaviour())
    pass_time(silent, clock, peers, 105, step_s=1)
    settled(silent, clock, peers)
    assert [at - began for at in times] == [30, 35, 40, 70, 100]
    assert not silent.worker.flags.lost


def test_a_peer_that_trickles_does_not_hold_the_lease(peers: Peers, clock: ManualClock, silent: Driven) -> None:
    """Proves: L-07. The deadline is enforced while a request is in flight, and ends it."""
    peers.always["heartbeat"] = Trickles()
    assert pass_time(silent, clock, peers, 200) == 120
    assert len(peers.of("heartbeat")) == 6  # each is ended after its ten seconds, and the schedule goes on
    assert silent.wait() == 3
    assert peers.of("finish") == []


def test_a_step_that_is_blocked_when_the_lease_ends_is_cut(peers: Peers, clock: ManualClock) -> None:
    """Proves: L-07 (any call): the main thread hangs in the control plane, and is out when the lease is over."""
    peers.always["heartbeat"] = Refuses(503, "not_ready")
    peers.always["admit"] = Trickles()
    driven = drive(peers, DEFAULTS, clock)
    peers.wait_for("admit")
    assert pass_time(driven, clock, peers, 200) == 120
    assert driven.wait() == 3
    assert peers.names(without=BESIDE)[-2:] == ["admit", "stop"]


def test_a_hint_that_the_attempt_has_ended_is_checked_by_a_renewal(
    peers: Peers, clock: ManualClock, silent: Driven
) -> None:
    """A signal is only a hint: the renewal that it sets off says so for sure."""
    settled(silent, clock, peers)
    clock.advance(1)
    peers.always["heartbeat"] = Refuses(409, "lease_refused")
    with peers.changing():
        peers.ended = True
    assert silent.wait() == 3
    assert len(peers.of("heartbeat")) == 1


def test_a_worker_that_does_not_end_after_its_lease_is_ended(peers: Peers, clock: ManualClock, silent: Driven) -> None:
    """Proves: L-06 (whatever hangs). The dead-man's switch has long since ended the agent."""
    peers.always["stop"] = Trickles()
    peers.always["heartbeat"] = Refuses(409, "lease_refused")
    pass_time(silent, clock, peers, 30)
    peers.wait_for("stop")
    until(lambda: silent.worker.watchdog.alarms, "the last alarm is set")
    clock.advance(20)
    assert silent.ended_hard.wait(10)


def test_the_lease_that_activate_renews_is_counted_from_its_first_send(peers: Peers, clock: ManualClock) -> None:
    """Proves: L-06. The first send may be the one that renewed it, although only the second was answered."""
    hang = Hangs()
    peers.on["activate"].append(hang)
    began = clock.monotonic()
    driven = drive(peers, DEFAULTS, clock)
    peers.on_prompt = stay_silent
    peers.wait_for("activate")
    clock.advance(20)
    hang.release.set()
    peers.wait_for("prompt")
    assert driven.worker.lease.last_confirmed_sent_at == began
    peers.settle_turn()
    assert driven.wait() == 0
