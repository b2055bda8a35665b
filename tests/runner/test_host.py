"""The host as a process, its children, and simulated peers (D-05, H-01 to H-06, protocol.md sections 2 to 4)."""

import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from runner.behaviours import Answers, Behaviour, Calls, Cuts, Hangs, Late, Refuses
from runner.driving import FAST
from runner.hosting import RunningHost, pause, running_host, until
from runner.peers import HOST_TOKEN, Peers, stay_silent
from turnkeeper.domain.settings import Limits, Timing
from turnkeeper.kit.ids import new_id
from turnkeeper.kit.procs import ProcessId, identify, is_alive


def only_child(host: RunningHost) -> ProcessId:
    """The one child that carries out a turn, by its record."""
    record = until(lambda: host.records, "a record is there")[0]
    return ProcessId(record["pid"], record["start_ticks"])


def gone(peers: Peers) -> list[dict[str, Any]]:
    """What the host has reported as gone, in all its heartbeats."""
    return [child for call in peers.of("hosts") for child in call.body["gone"]]


def test_a_claimed_turn_is_carried_out_by_one_child(peers: Peers, tmp_path: Path) -> None:
    """Proves: H-01. Each side's token, and a clean end on SIGTERM."""
    peers.add_claim()
    with running_host(peers, tmp_path) as host:
        peers.wait_for("finish")
        until(lambda: not host.records, "the record is gone")
        assert peers.of("finish")[0].body["status"] == "completed"
        assert {call.token for call in peers.of("prepare")} == {peers.worker_token}
        assert {call.token for call in [*peers.of("claim"), *peers.of("hosts")]} == {HOST_TOKEN}
        assert peers.of("release") == []
        host.signal(signal.SIGTERM)
        assert host.wait() == 0
    assert gone(peers) == []


def test_the_first_heartbeat_comes_before_the_first_claim(peers: Peers, tmp_path: Path) -> None:
    """The control plane counts a host's load by its incarnation, so it hears of it first."""
    peers.add_claim()
    with running_host(peers, tmp_path, labels={"zone": "a"}, capacity=3):
        peers.wait_for("claim")
    names = [call.name for call in peers.calls]
    assert names.index("hosts") < names.index("work") < names.index("claim")
    beat = peers.of("hosts")[0].body
    assert (beat["state"], beat["capacity"], beat["labels"], beat["provisioner"]) == (
        "ready",
        3,
        {"zone": "a"},
        "local",
    )
    assert {call.body["incarnation"] for call in peers.of("claim")} == {beat["incarnation"]}


@pytest.mark.parametrize("lost", [Cuts(done=True), Cuts(), Refuses(503, "not_ready")])
def test_a_claim_whose_answer_was_lost_is_repeated_with_its_id(peers: Peers, tmp_path: Path, lost: Behaviour) -> None:
    """Proves: D-05. The same id until it is answered; the message is not stranded, and carried out once."""
    peers.on["claim"].extend([lost, lost])
    peers.add_claim()
    with running_host(peers, tmp_path):
        peers.wait_for("finish")
    assert len({call.body["claim_id"] for call in peers.of("claim")[:3]}) == 1
    assert len(peers.of("prepare")) == len(peers.of("prompt")) == 1


def test_the_lease_of_a_repeated_claim_is_counted_from_its_first_send(peers: Peers, tmp_path: Path) -> None:
    """Step 1. What is left after the outage is too little for one heartbeat: the child does not take it."""
    peers.lease_ttl_s = 2
    timing = {"lease_ttl_s": 3, "heartbeat_interval_s": 0.5, "heartbeat_timeout_s": 1.0}
    peers.on["claim"].append(Hangs(done=True))
    peers.add_claim()
    with running_host(peers, tmp_path, timing=with_timing(control_timeout_s=1.5, **timing)):
        release = peers.wait_for("release", timeout_s=20)
    assert release.body["why"] == "not_accepted"
    assert release.token == peers.worker_token
    assert peers.of("prepare") == []


def test_a_child_that_is_killed_is_reported_gone(peers: Peers, tmp_path: Path) -> None:
    """Proves: H-04. It had accepted: nothing is released, the control plane is told that it is gone, at once."""
    peers.on_prompt = stay_silent
    claim = peers.add_claim()
    with running_host(peers, tmp_path) as host:
        peers.wait_for("prompt")
        os.kill(only_child(host).pid, signal.SIGKILL)
        until(lambda: gone(peers), "it is reported", 3)
        until(lambda: not host.records, "and forgotten once that was heard")
    expected = {"job": claim["job"], "attempt": claim["attempt"], "lease_generation": claim["lease_generation"]}
    assert gone(peers) == [expected]
    assert peers.of("release") == []
    assert len(peers.of("prompt")) == 1


def test_what_is_gone_is_reported_until_it_was_heard(peers: Peers, tmp_path: Path) -> None:
    """A heartbeat that is not answered reports nothing."""
    peers.on_prompt = stay_silent
    peers.add_claim()
    with running_host(peers, tmp_path) as host:
        peers.wait_for("prompt")
        peers.always["hosts"] = Cuts()
        os.kill(only_child(host).pid, signal.SIGKILL)
        until(lambda: gone(peers), "it is reported", 5)
        assert host.records
        peers.always.pop("hosts")
        until(lambda: not host.records, "it was heard", 8)
    assert len({child["attempt"] for child in gone(peers)}) == 1


def test_a_child_that_is_killed_before_it_accepted_gives_the_claim_back(peers: Peers, tmp_path: Path) -> None:
    """Proves: H-02, H-05. The descriptor ended without a word: proof, and a release with the turn's own token."""
    with running_host(peers, tmp_path) as host:
        (spare,) = host.wait_spares(1)
        os.kill(spare, signal.SIGSTOP)
        claim = peers.add_claim()
        until(lambda: host.records, "it was recorded before the hand-over")
        os.kill(spare, signal.SIGKILL)
        release = peers.wait_for("release")
        until(lambda: not host.records, "the record is gone")
    assert release.path.split("/")[5] == claim["job"]
    assert release.token == claim["worker_token"]
    assert release.body["why"] == "not_accepted"
    assert release.body["lease_generation"] == claim["lease_generation"]
    assert gone(peers) == []
    assert peers.of("prepare") == []


def test_a_child_that_is_stopped_before_it_accepted_is_waited_for(peers: Peers, tmp_path: Path) -> None:
    """Proves: H-03. Silent but alive: no release, whatever the time. When it goes on, it takes the turn."""
    with running_host(peers, tmp_path) as host:
        (spare,) = host.wait_spares(1)
        os.kill(spare, signal.SIGSTOP)
        peers.add_claim()
        until(lambda: host.records, "it was handed over")
        pause(2.0)
        assert peers.of("release") == []
        assert peers.of("prepare") == []
        os.kill(spare, signal.SIGCONT)
        peers.wait_for("finish")
    assert peers.of("release") == []


def test_a_child_that_is_stopped_beyond_its_lease_does_not_take_the_turn(peers: Peers, tmp_path: Path) -> None:
    """Case: F01 (before acceptance). It goes on after the lease is over: it accepts nothing and touches nothing."""
    peers.lease_ttl_s = 2
    timing = with_timing(lease_ttl_s=2, heartbeat_interval_s=0.3, heartbeat_timeout_s=0.5)
    with running_host(peers, tmp_path, timing=timing) as host:
        (spare,) = host.wait_spares(1)
        os.kill(spare, signal.SIGSTOP)
        peers.add_claim()
        until(lambda: host.records, "it was handed over")
        pause(2.5)
        os.kill(spare, signal.SIGCONT)
        assert peers.wait_for("release").body["why"] == "not_accepted"
    assert peers.of("prepare") == []


def test_a_worker_that_is_paused_beyond_its_lease_ends_its_turn_when_it_goes_on(peers: Peers, tmp_path: Path) -> None:
    """Case: F01 (the worker's part). Proves: L-06, L-08: stopped, within one heartbeat interval, and nothing written."""
    peers.lease_ttl_s = 4
    peers.on_prompt = stay_silent
    timing = with_timing(lease_ttl_s=4, heartbeat_interval_s=0.5, heartbeat_timeout_s=1)
    with running_host(peers, tmp_path, timing=timing) as host:
        host.wait_spares(1)
        peers.add_claim()
        peers.wait_for("prompt")
        child = only_child(host)
        os.kill(child.pid, signal.SIGSTOP)
        pause(4.5)
        before = len(peers.calls)
        os.kill(child.pid, signal.SIGCONT)
        until(lambda: not is_alive(child), "it has ended")
    written = [call.name for call in peers.calls[before:] if call.path.startswith("/v1/agent/worker/jobs/")]
    assert set(written) <= {"heartbeat", "signals"}
    assert peers.of("stop")


def test_a_host_that_drains_waits_for_its_children(peers: Peers, tmp_path: Path) -> None:
    """SIGTERM: nothing more is claimed, the turn ends by itself, then the host does."""
    peers.on_prompt = stay_silent
    peers.add_claim()
    with running_host(peers, tmp_path, timing=with_timing(drain_s=30)) as host:
        peers.wait_for("prompt")
        host.signal(signal.SIGTERM)
        until(lambda: peers.of("hosts")[-1].body["state"] == "draining", "it says that it drains")
        claims = len(peers.of("claim"))
        peers.add_claim(attempt=new_id(), root_run_id=new_id())
        pause(0.5)
        assert host.process.poll() is None
        peers.settle_turn()
        assert host.wait() == 0
    assert len(peers.of("claim")) == claims
    assert peers.of("finish")[0].body["status"] == "completed"


def test_a_turn_is_renewed_while_its_host_drains_and_after_it_has_left(peers: Peers, tmp_path: Path) -> None:
    """Proves: L-10, L-02. Its lease is the child's own business."""
    peers.on_prompt = stay_silent
    peers.add_claim()
    timing = with_timing(drain_s=3, heartbeat_interval_s=0.2, heartbeat_timeout_s=2)
    with running_host(peers, tmp_path, timing=timing) as host:
        peers.wait_for("prompt")
        child = only_child(host)
        host.signal(signal.SIGTERM)
        until(lambda: peers.of("hosts")[-1].body["state"] == "draining", "it drains")
        peers.wait_for("heartbeat", len(peers.of("heartbeat")) + 3)
        assert host.wait(20) == 0
        peers.wait_for("heartbeat", len(peers.of("heartbeat")) + 3)
        peers.settle_turn()
        until(lambda: not is_alive(child), "the turn has ended")
    assert peers.of("finish")[0].body["status"] == "completed"


def test_a_drain_is_bounded_and_its_children_go_on(peers: Peers, tmp_path: Path) -> None:
    """The children keep their leases and their turns; the next start adopts them."""
    peers.on_prompt = stay_silent
    peers.add_claim()
    with running_host(peers, tmp_path) as host:  # drain: 1 s
        peers.wait_for("prompt")
        child = only_child(host)
        host.signal(signal.SIGTERM)
        assert host.wait(20) == 0
        assert is_alive(child)
        peers.settle_turn()
        until(lambda: not is_alive(child), "the turn has ended")
    assert peers.of("finish")[0].body["status"] == "completed"


def test_a_second_signal_ends_the_host_at_once(peers: Peers, tmp_path: Path) -> None:
    """And the children go on."""
    peers.on_prompt = stay_silent
    peers.add_claim()
    with running_host(peers, tmp_path, timing=with_timing(drain_s=60)) as host:
        peers.wait_for("prompt")
        child = only_child(host)
        host.signal(signal.SIGTERM)
        until(lambda: host.log_count("host_draining"), "it drains")
        host.signal(signal.SIGINT)
        assert host.wait(3) == 0
        assert is_alive(child)
        peers.settle_turn()
        peers.wait_for("finish")


def test_a_claim_that_arrives_while_draining_is_given_back(peers: Peers, tmp_path: Path) -> None:
    """Proves: D-05, H-02. No child was created for it: the first of the three proofs."""
    hang = Hangs()
    peers.on["claim"].append(hang)
    peers.add_claim()
    with running_host(peers, tmp_path) as host:
        peers.wait_for("claim")
        host.signal(signal.SIGTERM)
        until(lambda: host.log_count("host_draining"), "it drains")
        hang.release.set()
        assert peers.wait_for("release").body["why"] == "not_created"
        assert host.wait() == 0
    assert peers.of("prepare") == []


def test_the_next_start_adopts_what_lives_and_reports_what_is_gone(peers: Peers, tmp_path: Path) -> None:
    """Section 2, "Host": a new incarnation ends no attempt by itself; what lives counts as load."""
    peers.on_prompt = stay_silent
    claims = [peers.add_claim(attempt=new_id(), root_run_id=new_id()) for _ in range(2)]
    with running_host(peers, tmp_path, capacity=2, spares=0) as first:
        peers.wait_for("prompt", 2)
        by_attempt = {record["attempt"]: record for record in first.records}
        lives, dies = (by_attempt[claim["attempt"]] for claim in claims)
        first.signal(signal.SIGKILL)
        first.wait()
        os.kill(dies["pid"], signal.SIGKILL)
        until(lambda: identify(dies["pid"]) is None, "it is gone")
        assert gone(peers) == []
        with running_host(peers, tmp_path, capacity=2, spares=0) as second:
            until(lambda: gone(peers), "the one that is gone is reported")
            assert [child["attempt"] for child in gone(peers)] == [claims[1]["attempt"]]
            incarnations = {call.body["incarnation"] for call in peers.of("hosts")}
            assert len(incarnations) == 2
            peers.add_claim(attempt=new_id(), root_run_id=new_id())
            last = until(
                lambda: [c for c in peers.of("claim")[2:] if c.body["incarnation"] in incarnations], "it claims"
            )
            assert last[-1].body["rooms"] == 1
            os.kill(lives["pid"], signal.SIGKILL)
            until(lambda: len(gone(peers)) == 2, "and the other when it goes")
            assert second.process.poll() is None


def test_two_hosts_of_one_name_do_not_share_a_directory(peers: Peers, tmp_path: Path) -> None:
    """The second says why and ends."""
    with running_host(peers, tmp_path) as first:
        until(lambda: peers.of("hosts"), "the first is up")
        with running_host(peers, tmp_path) as second:
            assert second.wait() != 0
        assert "already runs here" in first.log_path.read_text()
        assert first.process.poll() is None


def test_rooms_are_the_capacity_less_the_distinct_roots(peers: Peers, tmp_path: Path) -> None:
    """Proves: D-06 (the host's side): two runs of one tree take one room."""
    peers.on_prompt = stay_silent
    root = new_id()
    for _ in range(2):
        peers.add_claim(attempt=new_id(), root_run_id=root)
    peers.add_claim(attempt=new_id(), root_run_id=new_id())
    with running_host(peers, tmp_path, capacity=3):
        peers.wait_for("claim", 3)
        peers.wait_for("prepare", 3)
        peers.add_claim(attempt=new_id(), root_run_id=new_id())
        peers.wait_for("claim", 4)
    assert [call.body["rooms"] for call in peers.of("claim")[:4]] == [3, 2, 2, 1]


def test_a_full_host_still_asks_for_runs_of_its_own_trees_and_does_not_go_round_in_circles(
    peers: Peers, tmp_path: Path
) -> None:
    """Section 3: an empty answer is repeated within 2 s while ready rows exist."""
    peers.on_prompt = stay_silent
    peers.add_claim()
    peers.more = True
    with running_host(peers, tmp_path, capacity=1):
        peers.wait_for("prepare")
        peers.always["work"] = Answers(200, {"maybe": True})
        peers.always["claim"] = Answers(200, {"claim": None, "more": True})
        first = peers.wait_for("claim", len(peers.of("claim")) + 1)
        second = peers.wait_for("claim", len(peers.of("claim")) + 1, 4)
        third = peers.wait_for("claim", len(peers.of("claim")) + 1, 4)
    assert first.body["rooms"] == 0
    for earlier, later in ((first, second), (second, third)):
        assert 0.4 < later.at - earlier.at <= 2.2


def test_work_that_is_never_there_is_not_claimed_in_a_hurry(peers: Peers, tmp_path: Path) -> None:
    """*Maybe* that is always wrong: another host was faster, each time."""
    peers.always["work"] = Answers(200, {"maybe": True})
    with running_host(peers, tmp_path):
        peers.wait_for("claim", 4)
        pause(1.5)
        assert len(peers.of("claim")) < 12


def test_what_was_claimed_in_vain_long_ago_delays_nothing(peers: Peers, tmp_path: Path) -> None:
    """The pause that keeps a host from claiming in a hurry is over once it had to wait for a sign of work."""
    at_once = Answers(200, {"maybe": True})
    peers.on["work"].extend([at_once, at_once, at_once, at_once, Late(0.4, at_once)])
    with running_host(peers, tmp_path):
        peers.wait_for("work", 6)
        fifth, sixth = peers.of("work")[4:6]
        assert sixth.at - fifth.at < 1.0, "0.4 s of waiting, and a short pause"


def test_a_host_whose_children_cannot_start_stops_claiming_and_says_why(peers: Peers, tmp_path: Path) -> None:
    """Proves: H-06. `launch_error` in the heartbeat, ever longer pauses, and no claim until one starts again."""
    blocked = tmp_path / "child.log"
    blocked.mkdir()  # a log file that cannot be opened: no child can be created
    peers.add_claim()
    with running_host(peers, tmp_path) as host:
        beat = until(lambda: [c for c in peers.of("hosts") if c.body["state"] == "backing_off"], "it backs off")[0]
        assert "cannot be started" in beat.body["launch_error"]
        pause(0.5)
        claimed = len(peers.of("claim"))
        assert len(peers.of("release")) == claimed  # at most one was claimed before the first failure was known
        blocked.rmdir()
        until(lambda: peers.of("hosts")[-1].body["state"] == "ready", "it works again", 10)
        assert peers.of("hosts")[-1].body["launch_error"] is None
        if claimed:
            peers.add_claim()
        peers.wait_for("finish")
        assert host.log_count("child_launch_failed") >= 1


def test_a_host_that_cannot_write_its_records_stops_claiming_and_says_why(peers: Peers, tmp_path: Path) -> None:
    """Proves: H-06. A file lies where the records belong: no claim is burnt, and the turn is taken when it is gone."""
    with running_host(peers, tmp_path) as host:
        peers.wait_for("work")
        children = tmp_path / "host" / "host-1" / "children"
        children.rmdir()
        children.write_text("in the way")
        peers.add_claim()
        beat = until(lambda: [c for c in peers.of("hosts") if c.body["state"] == "backing_off"], "it backs off")[0]
        assert beat.body["launch_error"] == f"the records of children cannot be written in {children}: Not a directory"
        pause(1.5)
        assert peers.of("claim") == peers.of("release") == []
        children.unlink()  # and the directory is made anew
        until(lambda: peers.of("hosts")[-1].body["state"] == "ready", "it works again", 20)
        assert peers.of("hosts")[-1].body["launch_error"] is None
        peers.wait_for("finish")
        assert peers.of("release") == []
        assert host.log_count("child_record_failed") >= 1


def test_records_that_cannot_be_written_after_the_claim_give_it_back_once(peers: Peers, tmp_path: Path) -> None:
    """Proves: H-06, H-02. With proof that it was never handed over; the host that knows now claims nothing more."""
    children = tmp_path / "host" / "host-1" / "children"

    def block() -> None:
        children.rmdir()
        children.write_text("in the way")

    peers.on["claim"].append(Calls(block))
    peers.add_claim()
    with running_host(peers, tmp_path):
        assert peers.wait_for("release").body["why"] == "not_delivered"
        peers.add_claim()
        beat = until(lambda: [c for c in peers.of("hosts") if c.body["state"] == "backing_off"], "it backs off")[0]
        assert "cannot be written" in beat.body["launch_error"]
        pause(1.5)
        assert len(peers.of("claim")) == len(peers.of("release")) == 1
        children.unlink()
        peers.wait_for("finish")


def test_a_superseded_incarnation_stops_claiming_and_leaves(peers: Peers, tmp_path: Path) -> None:
    """A newer incarnation of this host was heard."""
    with running_host(peers, tmp_path) as host:
        until(lambda: peers.of("work"), "it waits for work")
        peers.heartbeat_answer = {"superseded": True, "interval_s": 1}
        peers.on_prompt = stay_silent
        peers.add_claim()
        peers.wait_for("prompt")
        os.kill(only_child(host).pid, signal.SIGKILL)  # so that it says something now
        assert host.wait() == 0


def test_old_spares_are_retired(peers: Peers, tmp_path: Path) -> None:
    """Spares are replaced by age, and the old ones end."""
    with running_host(peers, tmp_path, limits=Limits(spare_age_s=0.5)) as host:
        old = until(lambda: host.logged("spare_ready"), "one is there")[0]["pid"]
        until(lambda: host.log_count("spare_ready") > 1, "another is there")
        until(lambda: identify(old) is None, "the old one has ended")


def test_the_host_token_is_nowhere_but_in_its_memory(peers: Peers, tmp_path: Path) -> None:
    """Proves: K-11 (of hosts and children): not in arguments, environments, state or logs; nor is the worker's."""
    peers.on_prompt = stay_silent
    peers.add_claim()
    with running_host(peers, tmp_path) as host:
        peers.wait_for("prompt")
        seen = b""
        for pid in [host.process.pid, *host.children]:
            seen += Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
        host.signal(signal.SIGTERM)
        host.wait()
    for path in tmp_path.rglob("*"):
        if path.is_file():
            seen += path.read_bytes()
    assert HOST_TOKEN.encode() not in seen
    assert peers.worker_token.encode() not in seen


def test_a_host_that_cannot_reach_the_control_plane_keeps_trying(peers: Peers, tmp_path: Path) -> None:
    """Refused, cut, then there; one outage is told once (E-03)."""
    peers.on["hosts"].extend([Cuts(), Refuses(503, "not_ready"), Refuses(401, "unauthorized")])
    peers.on["work"].extend([Cuts(), Refuses(503, "not_ready")])
    peers.add_claim()
    with running_host(peers, tmp_path) as host:
        peers.wait_for("finish", timeout_s=20)
        told = [one["operation"] for one in host.logged("host_control_failure")]
        assert (told.count("host_heartbeat"), host.log_count("host_heartbeat_recovered")) == (1, 1)


def with_timing(**overrides: float) -> Timing:
    """The fast timing with some of it changed."""
    return dataclasses.replace(FAST, **overrides)
