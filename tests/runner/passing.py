"""Letting time pass for a turn on a clock that the test moves, and seeing when its requests leave."""

from collections.abc import Callable

from runner.behaviours import Behaviour, Reply
from runner.driving import Driven
from runner.hosting import until
from runner.peer_server import Handler
from runner.peers import Peers
from turnkeeper.kit.clock import ManualClock

THREADS = 5


def settled(driven: Driven, clock: ManualClock, peers: Peers) -> None:
    """Wait until nothing moves: main thread, watchdog, heartbeat, feed and signals each wait for the clock or for a peer."""
    until(lambda: driven.worker.flags.lost or clock.waiting + peers.blocked >= THREADS, "all threads wait")


def pass_time(driven: Driven, clock: ManualClock, peers: Peers, s: float, step_s: float = 5) -> float:
    """Let `s` seconds pass in steps, or less where the lease is lost before; returns how many did."""
    began = clock.monotonic()
    settled(driven, clock, peers)
    while clock.monotonic() - began < s and not driven.worker.flags.lost:
        clock.advance(min(step_s, s - (clock.monotonic() - began)))
        settled(driven, clock, peers)
    return clock.monotonic() - began


class Notes(Behaviour):
    """Notes the manual time of each request, then does as `then`."""

    def __init__(self, times: list[float], clock: ManualClock, then: Behaviour) -> None:
        self._times = times
        self._clock = clock
        self._then = then

    def respond(self, handler: Handler, usual: Callable[[], Reply]) -> None:
        self._times.append(self._clock.monotonic())
        self._then.respond(handler, usual)
