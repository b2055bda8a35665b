"""The lease on the real product: whatever dies or stands still, the agent stops in time and nothing late is accepted.

The tool of each turn writes the time into a file every 100 ms, so that the file itself says until when the agent could act.
"""

import os
import signal
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from e2e.harness import GRACE_S, LEASE_S, ROUND_S, SHORT_LEASE, Product, wait_for
from e2e.second_host import SecondHost, second_host, stopped
from turnkeeper.domain.errors import Language, lost_sentence
from turnkeeper.kit.procs import ProcessId, descendants, is_alive, kill

pytestmark = pytest.mark.timeout(180)

BEATS = "while :; do date +%s%N >> beats; sleep 0.1; done"
LATE_S = 1.0
"""The agent's processes are gone so much after the lease's end at the latest (L-12)."""
REAPED_S = LEASE_S + GRACE_S + ROUND_S + 15


@pytest.fixture(scope="module", name="product")
def _product() -> Generator[Product]:
    with Product(SHORT_LEASE) as running:
        yield running


def beating(product: Product, agent: str, *, stubborn: bool) -> tuple[str, str, Path]:
    """A turn whose tool writes the time every 100 ms: thread, run and file. A `stubborn` agent does not hear a cancel."""
    thread = product.conversation(product.agent(agent), agent)
    run_id = product.submit(thread, f"/run {BEATS}" + ("\n/hang" if stubborn else ""))
    beats = product.workspace / agent / "beats"
    wait_for(beats.exists, f"the tool writes\n{product.tell()}")
    return thread, run_id, beats


def last_write(beats: Path) -> float:
    """When the tool wrote last, in seconds of the wall clock."""
    return int(beats.read_text().split()[-1]) / 1e9


def tree_of(product: Product, thread: str) -> list[ProcessId]:
    """The agent and everything below it."""
    (agent,) = product.agents_running(thread)
    below = descendants(agent.pid)
    assert below
    return [agent, *below]


def lease_end(product: Product, run_id: str) -> float:
    """The lease's end as the database holds it, in seconds of the wall clock."""
    row = product.row("SELECT lease_expires_at FROM attempts WHERE run_id = %s", run_id)
    return row["lease_expires_at"].timestamp()


def wait_dead(processes: list[ProcessId]) -> float:
    """Wait until all of them are dead; when that was seen."""
    wait_for(lambda: not any(map(is_alive, processes)), "the agent's processes are dead", LEASE_S + 20)
    return time.time()


def events_of(product: Product, thread: str) -> list[dict[str, Any]]:
    """Every stored event of a conversation."""
    return product.rows("SELECT * FROM events WHERE thread_id = %s ORDER BY seq", thread)


def check_lost(product: Product, thread: str, run_id: str) -> None:
    """Delivered and not settled: failed, not guessed; the conversation is over and says so in plain words."""
    run = product.wait_status(run_id, timeout_s=REAPED_S)
    assert (run.status, run.error_code) == ("failed", "outcome_unknown"), f"{run}\n{product.tell()}"
    conversation = wait_for(
        lambda: found if (found := product.client.conversation(thread)).state == "lost" else None, "it is lost"
    )
    assert conversation.lost_text == lost_sentence(Language.EN)


def test_a_child_that_is_killed_leaves_no_process_beyond_its_lease(product: Product) -> None:
    """SIGKILL of the child in mid-turn. Proves: L-12, H-04, R-02, R-06."""
    thread, run_id, beats = beating(product, "child-killed", stubborn=True)
    tree = tree_of(product, thread)
    assert kill(product.child(run_id), signal.SIGKILL)
    gone_at = wait_dead(tree)
    ends = lease_end(product, run_id)
    assert gone_at <= ends + LATE_S
    assert last_write(beats) <= ends + LATE_S
    check_lost(product, thread, run_id)


@pytest.mark.parametrize("stubborn", [True, False], ids=["deaf to a cancel", "hears the cancel"])
def test_a_host_that_is_killed_with_its_children_leaves_no_process_beyond_its_lease(
    product: Product, *, stubborn: bool
) -> None:
    """Nobody is left to tell, and nobody restarts it: the switch in the sandbox alone ends the tool, near the lease's end.

    An agent that hears the cancel before (L-12) ends its tool by itself and may stay, as one that reached a boundary.
    Proves: L-12, H-04, R-02, R-06.
    """
    name = "host-killed" if stubborn else "host-killed-polite"
    thread, run_id, beats = beating(product, name, stubborn=stubborn)
    tree = tree_of(product, thread)
    host = product.process("host")
    up = ProcessId(product.up_pid, _start_ticks(product.up_pid))
    with stopped(up):
        victims = [host, *descendants(host.pid)]
        assert product.child(run_id) in victims
        for victim in victims:
            kill(victim, signal.SIGKILL)
        ends = lease_end(product, run_id)
        gone_at = wait_dead(tree if stubborn else tree[1:])
    assert gone_at <= ends + LATE_S
    # Not ended by chance before: the switch is set from the marks of the renewals, and a cancel comes a little earlier.
    assert ends - 4.5 <= last_write(beats) <= ends + LATE_S
    check_lost(product, thread, run_id) if stubborn else product.wait_status(run_id, timeout_s=REAPED_S)


def _start_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


@pytest.fixture(name="away")
def _away(product: Product) -> Generator[SecondHost]:
    """A second host, which gets the next run because the first one stands still until the block of the test lets it go."""
    with second_host(product, "away") as host:
        yield host


def test_a_child_that_stands_still_beyond_its_lease_stops_itself_before_any_write(
    product: Product, away: SecondHost
) -> None:
    """SIGSTOP for longer than the lease, then SIGCONT. Case: F01. Proves: L-05, L-06, L-08, L-12, F-02."""
    with stopped(product.process("host")):
        thread, run_id, beats = beating(product, "child-stopped", stubborn=True)
        child, tree = away.child(run_id), tree_of(product, thread)
        kill(child, signal.SIGSTOP)
        gone_at, ends = wait_dead(tree), lease_end(product, run_id)
        assert gone_at <= ends + LATE_S
        assert last_write(beats) <= ends + LATE_S
        check_lost(product, thread, run_id)
        before = events_of(product, thread), product.rows("SELECT * FROM attempts WHERE run_id = %s", run_id)
        answered = len(away.to_jobs())
        continued_at = time.monotonic()
        os.kill(child.pid, signal.SIGCONT)
        wait_for(lambda: not is_alive(child), "the child ends by itself")
        # within one heartbeat interval; the rest is what its end costs on a busy machine
        assert time.monotonic() - continued_at < float(SHORT_LEASE["AGENT_HEARTBEAT_INTERVAL"]) + 5
    late = [one for one in away.to_jobs()[answered:] if one.verb != "signals"]
    assert all(one.verb == "heartbeat" and one.status == 409 for one in late), late
    verdicts = [one["verdict"] for one in away.logged("agent_lease_lost") if one["run"] == run_id]
    assert verdicts in (["expired"], ["refused"])
    assert (events_of(product, thread), product.rows("SELECT * FROM attempts WHERE run_id = %s", run_id)) == before


def test_words_that_arrive_after_the_lease_are_refused(product: Product, away: SecondHost) -> None:
    """A network that delivers late: events and renewals of a worker that has stopped reach the control plane after all.

    Proves: L-05, L-06, L-11, E-04. The worker's own clock ends the turn, without any 409.
    """
    with stopped(product.process("host")):
        thread = product.conversation(product.agent("late-words"), "late-words")
        run_id = product.submit(thread, "/ticks 2000 0.05")
        wait_for(lambda: any(one.verb == "events" for one in away.to_jobs()), "events are uploaded")
        child = away.child(run_id)
        away.gate.close()
        wait_for(lambda: not is_alive(child), "the child ends by its own clock", LEASE_S + 20)
        lost = [one for one in away.logged("agent_lease_lost") if one["run"] == run_id]
        assert [one["verdict"] for one in lost] == ["expired"]
        check_lost(product, thread, run_id)
        before = events_of(product, thread), product.rows("SELECT * FROM attempts WHERE run_id = %s", run_id)
        answered = len(away.to_jobs())
        away.gate.open()
        wait_for(
            lambda: {"events", "heartbeat"} <= {one.verb for one in away.to_jobs()[answered:]},
            "what was held back arrives",
        )
        late = away.to_jobs()[answered:]
    assert {one.status for one in late if one.verb != "signals"} == {409}, late
    assert (events_of(product, thread), product.rows("SELECT * FROM attempts WHERE run_id = %s", run_id)) == before


WORDS = ("prepare", "manifest", "container", "activate", "admit", "settle")


def test_a_turn_whose_every_reply_is_lost_once_moves_nothing_twice(product: Product, away: SecondHost) -> None:
    """Each word of the worker is carried out, its answer cut, and the word said again. Proves: F-04, F-06, D-05, R-03.

    Same receipts: one prompt, one native turn, one epoch, one snapshot, one end. The claim's own answer is lost as well, and
    that of `finish`: a renewal that is refused because of it is no lost lease.
    """
    with stopped(product.process("host")):
        agent = product.agent("lost-replies")
        thread = product.conversation(agent, "lost-replies")
        for turn in (1, 2):
            away.gate.lose_replies(claim=1, events=1, finish=1, **dict.fromkeys(WORDS, 2 if turn == 2 else 1))
            done = product.completed(thread, f"/say turn {turn}\n/write made.txt {turn}")
            said = 2 if turn == 1 else 5  # in both turns together
            verbs = [one.verb for one in away.to_jobs()]
            # a warm turn finds its container recorded
            assert {word: verbs.count(word) for word in WORDS} == {**dict.fromkeys(WORDS, said), "container": 2}
            assert {one.status for one in away.to_jobs() if one.verb not in ("heartbeat", "finish")} <= {200, 204}
            row = product.row("SELECT native_turn, state FROM memberships WHERE thread_id = %s", thread)
            assert (row["native_turn"], row["state"]) == (turn, "idle")
            assert (
                product.row("SELECT epoch FROM shared_workspaces WHERE runtime_scope_id = %s", thread)["epoch"] == turn
            )
            assert len(product.rows("SELECT 1 FROM snapshots WHERE run_id = %s", done.run.id)) == 1
            assert len(product.rows("SELECT 1 FROM activations WHERE run_id = %s", done.run.id)) == 1
            kinds = [event["kind"] for event in events_of(product, thread) if str(event["run_id"]) == done.run.id]
            assert (kinds.count("end"), kinds.count("shared_workspace_settled"), kinds[-1]) == (1, 1, "end")
        assert len(product.ledger(agent)) == 2
        assert [one for one in away.logged("agent_lease_lost") if one["run"] == done.run.id] == []
        assert [attempt.attempt_no for attempt in done.run.attempts] == [1]


def test_a_host_that_was_paused_finds_its_turn_taken_over(product: Product, away: SecondHost) -> None:
    """Case: F01. Attempt 1 is in its setup, not admitted, when its host stands still; the same message completes elsewhere.

    Proves: L-05, L-06, L-11, R-01, R-05, D-03. Nothing of attempt 1 appears after the first event of attempt 2.
    """
    setup = (
        "[ -e /workspace/paused-again ] && exit 0; touch /workspace/paused-begun; "
        "while :; do date +%s%N >> /workspace/paused-beats; sleep 0.1; done"
    )
    agent = product.agent("paused", setup=[["/bin/sh", "-c", setup]])
    thread = product.conversation(agent, "paused")
    with stopped(product.process("host")):
        first = product.submit(thread, "/say of the first")
        wait_for((product.workspace / "paused-begun").exists, f"the setup command runs\n{product.tell()}")
        child = away.child(first)
        beats = product.workspace / "paused-beats"
        wait_for(beats.exists, "it writes")
        family = away.family()
    with stopped(*family):
        run = product.wait_status(first, timeout_s=REAPED_S)
        assert (run.status, run.error_code) == ("failed", "worker_lease_expired"), f"{run}\n{product.tell()}"
        assert last_write(beats) <= lease_end(product, first) + LATE_S
        (product.workspace / "paused-again").touch()
        second = product.completed(thread, "/say of the second")
        before = events_of(product, thread)
        answered = len(away.to_jobs())
        continued_at = time.monotonic()
    wait_for(lambda: not is_alive(child), "the child of the first ends by itself")
    assert time.monotonic() - continued_at < float(SHORT_LEASE["AGENT_HEARTBEAT_INTERVAL"]) + 5
    late = [one for one in away.to_jobs()[answered:] if one.verb != "signals"]
    assert {one.status for one in late} <= {409}, late
    assert events_of(product, thread) == before
    of_first = [event["seq"] for event in before if str(event["run_id"]) == first]
    of_second = [event["seq"] for event in before if str(event["run_id"]) == second.run.id and event["attempt_id"]]
    assert max(of_first) < min(of_second)
    assert [entry.text for entry in product.ledger(agent)] == ["/say of the second"]
    assert is_alive(away.id)
