"""The prompt, once; its journal; what belongs to it and what does not."""

import asyncio
import json
import os

from sandboxd.manager import Manager, said, until
from turnkeeper.kit import ids


def ledger(manager: Manager) -> list[dict[str, object]]:
    """What the agent itself received."""
    path = manager.home / "ledger"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def test_prompt_is_used_once(manager: Manager) -> None:
    """Proves: F-05, R-03. At most one prompt per activation and per run, whoever repeats it, also all at once."""
    worker = manager.activation()
    (await worker.take()).ok()
    (await worker.prompt("too early")).refused(409, "no_session")
    (await worker.session()).ok()
    (await worker.call("POST", "/v1/prompt", {"run": ids.new_id(), "text": "x"})).refused(422, "run")
    answers = await asyncio.gather(*(worker.prompt("/say once") for _ in range(8)))
    assert sorted(answer.status for answer in answers) == [200, *[409] * 7]
    receipt = (await worker.events())[-1]["receipt"]
    (await worker.prompt("again")).refused(409, "prompt_used")
    other = worker.next(sub=worker.run)
    (await other.take()).ok()
    (await other.session(recorded=worker.recorded(receipt))).ok()
    (await other.prompt("the same run again")).refused(409, "prompt_used")
    assert [line["text"] for line in ledger(manager)] == ["/say once"]


async def test_journal_is_durable_before_the_prompt_and_after_the_response(manager: Manager) -> None:
    """Proves: R-07. `begun` is there when the agent receives the prompt, `settled` when the receipt is."""
    worker = manager.activation()
    events = await worker.turn("/run cat ../agents/homes/t1/.turnkeeper/journal")
    receipt = events[-1]["receipt"]
    shown = str(events)
    line = f"1 {worker.claims['activation']} "
    assert f"begun {line}" in shown
    assert "settled" not in shown
    text = (manager.home / ".turnkeeper" / "journal").read_text()
    assert text == "".join(f'{fact} {line}"{receipt["native_session"]}"\n' for fact in ("begun", "settled"))


async def test_journal_that_cannot_be_written_refuses_the_prompt(manager: Manager) -> None:
    """Proves: R-03. Without `begun` on disk nothing is written to the agent."""
    worker = manager.activation()
    (await worker.take()).ok()
    (await worker.session()).ok()
    folder = manager.home / ".turnkeeper"
    folder.mkdir(exist_ok=True)
    (folder / "journal").mkdir()
    (await worker.prompt("hello")).refused(503, "journal_failed")
    assert ledger(manager) == []
    assert (await worker.call("POST", "/v1/stop")).ok()["evidence"]["prompt_written"] is False


async def test_update_after_the_response_belongs_to_nobody(manager: Manager) -> None:
    """Proves: F-06. A chunk that comes after the response is credited neither to its turn's receipt nor to the next turn."""
    first = manager.activation()
    events = await first.turn("/say mine\n/late late words")
    assert "late words" not in str(events)
    receipt = events[-1]["receipt"]
    second = first.next()
    (await second.take()).ok()
    (await second.session(recorded=first.recorded(receipt))).ok()
    (await second.prompt("/say second")).ok()
    events = await second.events()
    assert said(events) == "second"
    assert "late words" not in str(events)


async def test_events_can_be_read_again_from_any_number(manager: Manager) -> None:
    """Proves: F-06. The stream is numbered from 1 and resumable; every reader sees the same, the last line included."""
    worker = manager.activation()
    (await worker.take()).ok()
    (await worker.session()).ok()
    early = asyncio.create_task(worker.events())
    (await worker.prompt("/tokens 200 0.005")).ok()
    cut: list[dict[str, object]] = []
    async for line in worker.lines():
        cut.append(line)
        if len(cut) == 50:
            break
    rest = await worker.events(after=50)
    everything = await early
    assert [*cut, *rest] == everything
    assert [line["n"] for line in everything] == list(range(1, len(everything) + 1))
    assert await worker.events(after=10_000) == everything[-1:]
    assert everything[-1]["receipt"]["last_event"] == len(everything) - 1


async def test_cancel(manager: Manager) -> None:
    """Proves: R-07. A cancel that the agent acknowledges is a settlement at a boundary; without an open prompt none is sent."""
    worker = manager.activation()
    (await worker.take()).ok()
    (await worker.session()).ok()
    assert (await worker.call("POST", "/v1/cancel")).ok() == {"sent": False}
    (await worker.prompt("/say one\n/sleep 100")).ok()
    assert (await worker.call("POST", "/v1/cancel")).ok() == {"sent": True}
    receipt = (await worker.events())[-1]["receipt"]
    assert (receipt["outcome"], receipt["stop_reason"], receipt["native_turn"]) == ("cancelled", "cancelled", 1)
    assert receipt["error_code"] is None
    second = worker.next()
    (await second.take()).ok()
    assert (await second.session(recorded=worker.recorded(receipt))).ok()["mode"] == "continued"


async def test_cancel_answers_permissions_cancelled(manager: Manager) -> None:
    """Proves: R-07. From the cancel on a permission request is answered `cancelled`, for real agents wait for it."""
    worker = manager.activation()
    (await worker.take()).ok()
    env = {"SCRIPTED_AGENT_FAULT": "cancel:delay=0.3"}
    (await worker.session(env=env, permission_rules=[{"kind": "*", "action": "allow"}])).ok()
    (await worker.prompt("/sleep 0.2\n/ask Really?")).ok()
    (await worker.call("POST", "/v1/cancel")).ok()
    events = await worker.events()
    asked = [event["data"] for event in events if event.get("kind") == "permission"]
    assert asked == [] or asked[0]["answer"] == {"outcome": "cancelled"}
    assert events[-1]["receipt"]["outcome"] == "cancelled"


async def test_error_is_a_settlement(manager: Manager) -> None:
    """Proves: R-07. The response came, so the boundary is known, whatever it says; the session goes on."""
    worker = manager.activation()
    receipt = (await worker.turn("/fail no more tokens"))[-1]["receipt"]
    assert (receipt["outcome"], receipt["stop_reason"]) == ("failed", "error")
    assert (receipt["error_code"], receipt["native_turn"]) == ("agent_protocol_error", 1)
    assert "no more tokens" in receipt["error_text"]
    second = worker.next()
    (await second.take()).ok()
    assert (await second.session(recorded=worker.recorded(receipt))).ok()["mode"] == "continued"


async def test_permission_rules(manager: Manager) -> None:
    """Proves: K-08. The first rule that fits answers, by the option's kind; none rejects; what was asked is shown."""
    worker = manager.activation()
    rules = [
        {"kind": "edit", "action": "allow"},
        {"kind": "other", "action": "allow"},
        {"kind": "*", "action": "reject"},
    ]
    events = await worker.turn("/ask May I? | No=reject_once | Yes=allow_once", permission_rules=rules)
    assert said(events) == "answered: Yes"
    asked = next(event["data"] for event in events if event.get("kind") == "permission")
    assert (asked["title"], asked["kind"], asked["rule"]) == ("May I?", "other", "other")
    assert asked["answer"] == {"outcome": "selected", "option": "allow_once"}
    second = worker.next()
    (await second.take()).ok()
    (await second.session(recorded=worker.recorded(events[-1]["receipt"]))).ok()
    (await second.prompt("/ask May I? | Yes=allow_once | No=reject_once")).ok()
    assert said(await second.events()) == "answered: No"  # the rules of this turn, not those of the process's start


async def test_deadline_of_a_prompt(manager: Manager) -> None:
    """Proves: L-01. Past its deadline a turn is cancelled, and an end at a boundary says why."""
    worker = manager.activation()
    (await worker.take()).ok()
    (await worker.session()).ok()
    (await worker.prompt("/sleep 100", deadline_s=0.3)).ok()
    receipt = (await worker.events())[-1]["receipt"]
    assert (receipt["outcome"], receipt["error_code"]) == ("cancelled", "execution_timeout")


async def test_state_and_secrets(manager: Manager) -> None:
    """Proves: K-11. A named secret reaches the agent's environment, and nothing else does."""
    response = await manager.http.put("/v1/secrets", json={"values": {"MODEL_KEY": "sesame", "OTHER": "hidden"}})
    assert response.status_code == 200
    worker = manager.activation()
    events = await worker.turn("/run env", env={"COLOUR": "blue"}, secrets=["MODEL_KEY"])
    output = next(e["data"]["content"][0]["content"]["text"] for e in events if e.get("kind") == "tool_update")
    names = {line.split("=")[0] for line in output.splitlines()} - {"PWD", "SHLVL", "_"}
    assert names == {"PATH", "HOME", "LANG", "COLOUR", "MODEL_KEY"}
    state = await manager.state()
    (membership,) = state["memberships"]
    assert (membership["busy"], membership["agent"]) == (False, events[-1]["receipt"]["agent"])
    second = worker.next()
    (await second.take()).ok()
    failure = (await second.session(secrets=["MISSING"])).ok()["failure"]
    assert (failure["stage"], failure["code"]) == ("start", "agent_start_failed")
    assert "MISSING" in failure["text"]
    assert "sesame" not in manager.log_path.read_text()


async def test_setup(manager: Manager) -> None:
    """Proves: R-04. Commands run in order up to the first that fails; what one leaves behind does not outlive it."""
    worker = manager.activation()
    (await worker.take()).ok()
    answer = (
        await worker.setup(
            ["sh", "-c", "echo out; echo err >&2; setsid sleep 1000 & true"], ["sh", "-c", "exit 7"], ["touch", "third"]
        )
    ).ok()
    assert answer["ok"] is False
    assert [result["exit"] for result in answer["results"]] == [0, 7]
    assert answer["results"][0]["output_tail"] == "out\nerr\n"
    assert not (manager.workdir / "third").exists()
    assert (await worker.setup(["touch", "again"])).ok() == answer  # asked again: the same answer, nothing run
    await until(lambda: manager.below() == [])
    second = worker.next()
    (await second.take()).ok()
    answer = (await second.setup(["sleep", "1000"], timeout_s=1)).ok()
    assert (answer["results"][0]["timed_out"], answer["results"][0]["exit"]) == (True, -9)
    third = second.next()
    (await third.take()).ok()
    answer = (await third.setup(["no-such-command"])).ok()
    assert answer["results"][0]["exit"] == 127
    assert "no-such-command" in answer["results"][0]["output_tail"]


async def test_agent_that_left_before_the_prompt(manager: Manager) -> None:
    """Case: F07. Never delivered: the prompt is refused, the stream tells how it left, and the session is not cut."""
    first = manager.activation()
    receipt = (await first.turn("one"))[-1]["receipt"]
    second = first.next()
    (await second.take()).ok()
    (await second.session(recorded=first.recorded(receipt))).ok()
    os.kill(receipt["agent"]["pid"], 9)
    (await second.prompt("never seen")).refused(409, "agent_exited")
    failure = (await second.events())[-1]["failure"]
    assert (failure["stage"], failure["code"], failure["exit"]) == ("prompt", "agent_exited", -9)
    assert (await second.call("POST", "/v1/stop")).ok()["evidence"]["prompt_written"] is False
    third = second.next()
    (await third.take()).ok()
    assert (await third.session(recorded=first.recorded(receipt))).ok()["mode"] == "reloaded"
    assert [line["text"] for line in ledger(manager)] == ["one"]
