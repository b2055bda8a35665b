"""The order of a turn (protocol.md section 4)."""

from runner.driving import run_turn
from runner.peers import Peers


def test_the_steps_come_in_their_order(peers: Peers) -> None:
    """Proves: A-02, F-05, H-04."""
    assert run_turn(peers) == 0
    names = peers.names(without=("heartbeat", "signals", "mark", "feed", "events", "events_stream"))
    assert sorted(names[1:3]) == ["ensure", "manifest"]
    assert names[:1] + names[3:] == [
        "prepare",
        "container",
        "activate",
        "take",
        "session",
        "admit",
        "prompt",
        "settle",
        "snapshot",
        "finish",
    ]
