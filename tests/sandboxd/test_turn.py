"""A whole turn: take, session, prompt, events, receipt; and the next one in the same session."""

from sandboxd.manager import Manager, said


async def test_turn_settles_and_continues(manager: Manager) -> None:
    """Proves: F-05, R-07. Three turns in one process, each with its receipt; the agent remembers."""
    first = manager.activation()
    events = await first.turn("/say hello")
    last = events[-1]
    assert last["receipt"]["outcome"] == "completed", last
    assert [event["n"] for event in events] == list(range(1, len(events) + 1))
    assert (events[0]["kind"], events[0]["data"]["mode"]) == ("session", "new")
    assert said(events) == "hello" == last["receipt"]["final_message"]
    receipt = last["receipt"]
    for turn in (2, 3):
        worker = first.next(fence=turn)
        (await worker.take()).ok()
        answer = (await worker.session(recorded=worker.recorded(receipt))).ok()
        assert (answer["mode"], answer["native_turn"]) == ("continued", turn - 1), answer
        (await worker.prompt("and now?")).ok()
        events = await worker.events()
        assert said(events) == f"turn {turn}, remembering {turn - 1} earlier turns: and now?"
        receipt = events[-1]["receipt"]
        assert receipt["native_turn"] == turn
        assert (await worker.call("GET", "/v1/receipt")).ok() == receipt
