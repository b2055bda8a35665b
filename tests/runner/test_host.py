"""The host against real children and simulated peers (H-01 to H-06, D-05)."""

import signal
from pathlib import Path

from runner.hosting import running_host, until
from runner.peers import HOST_TOKEN, Peers


def test_a_claimed_turn_is_carried_out_by_one_child(peers: Peers, tmp_path: Path) -> None:
    """Proves: H-01."""
    peers.add_claim()
    with running_host(peers, tmp_path) as host:
        peers.wait_for("finish")
        until(lambda: not host.records, "the record is gone")
        assert peers.of("finish")[0].body["status"] == "completed"
        assert {call.token for call in peers.of("prepare")} == {peers.worker_token}
        assert {call.token for call in peers.of("claim")} == {HOST_TOKEN}
        host.signal(signal.SIGTERM)
        assert host.wait() == 0
