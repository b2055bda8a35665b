"""The order of a turn (protocol.md section 4), and what each step carries."""

import pytest

from runner.behaviours import Call, Refuses
from runner.driving import run_turn
from runner.peers import ACTIVATION_TOKEN, PROVISIONER_TOKEN, Peers
from turnkeeper.wire.canonical import canonical_sha256

BESIDE = ("heartbeat", "signals", "mark", "feed", "events", "events_stream")


def test_the_steps_come_in_their_order(peers: Peers) -> None:
    """Proves: F-05, D-08."""
    assert run_turn(peers) == 0
    names = peers.names(without=BESIDE)
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


def test_each_side_gets_its_own_token_and_every_write_the_lease_generation(peers: Peers) -> None:
    """Proves: L-11 (the worker's side)."""
    run_turn(peers)
    worker = [call for call in peers.calls if call.path.startswith("/v1/agent/worker/jobs/")]
    assert {call.token for call in worker} == {peers.worker_token}
    assert {call.path.split("/")[5] for call in worker} == {peers.job}
    assert {call.body["lease_generation"] for call in worker if call.method == "POST"} == {peers.lease_generation}
    sandbox = [call for call in peers.calls if call.path.startswith("/v1/sandboxes/")]
    assert {call.token for call in sandbox} == {PROVISIONER_TOKEN}
    turns = [call for call in sandbox if "/manager/" in call.path]
    assert {call.activation_token for call in turns} == {ACTIVATION_TOKEN}
    assert all(f"/{peers.sandbox_id}/{peers.generation}/manager/v1/" in call.path for call in turns)


def test_the_manifest_is_recorded_with_the_digest_of_its_canonical_text(peers: Peers) -> None:
    """Proves: A-02 (the worker's side)."""
    peers.spec["manifest"] = {"b": [1, {"z": "é", "a": None}], "a": "x"}
    run_turn(peers)
    (manifest,) = peers.of("manifest")
    assert manifest.body["manifest"] == peers.spec["manifest"]
    assert manifest.body["sha256"] == canonical_sha256(peers.spec["manifest"])


def test_the_take_is_armed_with_a_mark_from_before_activate_was_sent(peers: Peers) -> None:
    """Proves: L-12 (arming)."""
    peers.mark_ms = 555_000
    run_turn(peers)
    (take,) = peers.of("take")
    assert take.body == {
        "mark_ms": 555_000,  # it came with the sandbox
        "lease_ttl_ms": 120_000,
        "cancel_lead_ms": 4000,
        "home": "/workspace/agents/homes/x",
    }


def test_the_recorded_session_is_handed_to_the_manager(peers: Peers) -> None:
    """Proves: R-07 (the evidence travels)."""
    facts = {
        "native_session": "native-0",
        "native_turn": 4,
        "settled_generation": "local-1",
        "settled_boot_id": "boot",
        "agent_pid": 12,
        "agent_start_ticks": 99,
    }
    peers.spec["membership"] = {"membership": peers.membership, **facts}
    run_turn(peers)
    assert peers.of("session")[0].body["recorded"] == facts


def test_setup_commands_run_between_take_and_session(peers: Peers) -> None:
    """The first half of step 7."""
    peers.spec["setup"] = [{"command": ["make", "deps"], "timeout_s": 5}]
    run_turn(peers)
    names = peers.names(without=BESIDE)
    assert names[names.index("take") : names.index("admit")] == ["take", "setup", "session"]
    assert peers.of("setup")[0].body["commands"] == [{"command": ["make", "deps"], "timeout_s": 5}]


def test_events_are_stored_as_they_were_numbered_and_the_notice_comes_last(peers: Peers) -> None:
    """Proves: F-03 (the order)."""

    def speak(peers: Peers) -> None:
        for number in range(50):
            peers.events.add("text", text=f"t{number}")
        peers.settle_turn()

    peers.on_prompt = speak
    assert run_turn(peers) == 0
    kinds = [event["kind"] for event in peers.stored]
    assert kinds == ["session", *["text"] * 50, "shared_workspace_settled"]
    assert [event["n"] for event in peers.stored] == list(range(1, 53))
    assert peers.stored[-1]["data"] == {"epoch": 1, "native_turn": 1, "native_session": "native-1"}
    assert position(peers, "finish") == max(position(peers, call.name) for call in peers.calls)


def test_the_snapshot_goes_with_finish_and_names_the_epoch(peers: Peers) -> None:
    """Proves: D-08 (settlement does not wait for it)."""
    run_turn(peers)
    assert peers.of("snapshot")[0].body == {"workdir": "conversations/x", "epoch": 1}
    finish = peers.of("finish")[0].body
    assert finish["status"] == "completed"
    assert finish["snapshot"]["tree_id"] == "a" * 40


def test_a_definition_without_snapshot_takes_none(peers: Peers) -> None:
    """`snapshot` false in the execution spec."""
    peers.spec["snapshot"] = False
    assert run_turn(peers) == 0
    assert peers.of("snapshot") == []


@pytest.mark.parametrize(
    "refusal",
    [Refuses(409, "generation"), Refuses(409, "boot_id"), Refuses(410, "retired"), Refuses(404, "not_found")],
)
def test_a_take_refused_by_an_ended_instance_repeats_the_search_and_the_activation_once(
    peers: Peers, refusal: Refuses
) -> None:
    """Step 6."""
    peers.on["take"].append(refusal)
    assert run_turn(peers) == 0
    names = peers.names(without=(*BESIDE, "manifest"))
    assert names[: names.index("session")] == [
        "prepare",
        "ensure",
        "container",
        "activate",
        "take",
        "ensure",
        "container",
        "activate",
        "take",
    ]


def test_a_take_refused_twice_is_abandoned_and_reported(peers: Peers) -> None:
    """Step 6: once, not for ever."""
    peers.always["take"] = Refuses(410, "retired")
    assert run_turn(peers) == 0
    names = peers.names(without=BESIDE)
    assert names.count("take") == 2
    assert names[-2:] == ["abandon", "finish"]
    assert peers.of("finish")[0].body["failure"]["code"] == "sandbox_unavailable"


def test_a_take_refused_by_a_newer_fence_is_not_repeated(peers: Peers) -> None:
    """Proves: D-03 (a stale worker does not come back)."""
    peers.always["take"] = Refuses(409, "fence")
    assert run_turn(peers) == 0
    assert len(peers.of("take")) == 1
    assert peers.of("prompt") == []


def position(peers: Peers, name: str) -> int:
    """Where the last call to `name` came."""
    calls: list[Call] = peers.calls
    return max(index for index, call in enumerate(calls) if call.name == name)
