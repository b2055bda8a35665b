"""Pages of lists: whole, in order, each thing once, whatever hurts in them."""

import pytest

from api.reading import reading
from api.world import World, problem

HURTS = "NUL\x00 half \ud83d whole \U0001f600 rtl\u202e zero\u200bwidth \u2028 <b>&amp; \x1b[31m"


@pytest.mark.parametrize("limit", [1, 3, 50])
def test_every_thing_once_and_in_order(world: World, limit: int) -> None:
    """Cursors: newest first for conversations and runs, oldest first for messages; nothing twice, nothing missing."""
    threads = [world.owner.conversation(title=f"c{n}")["thread_id"] for n in range(7)]
    runs = [world.owner.submit(threads[0], f"m{n}")["run"]["id"] for n in range(7)]
    world.add_owner("eve").conversation()
    pages = list(world.owner.pages("/v1/conversations", limit))
    assert [one["thread_id"] for page in pages for one in page] == list(reversed(threads))
    assert all(len(page) == limit for page in pages[:-1])
    for path in ("/v1/runs", f"/v1/conversations/{threads[0]}/runs"):
        assert [run["id"] for page in world.owner.pages(path, limit) for run in page] == list(reversed(runs))
    texts = [m["text"] for page in world.owner.pages(f"/v1/conversations/{threads[0]}/messages", limit) for m in page]
    assert texts == [f"m{n}" for n in range(7)]


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "limit=x", "limit=-1", "limit=1e3", "limit=", "limit=%00"])
def test_a_limit_is_a_number_within_bounds(shared_world: World, query: str) -> None:
    """400 that names it."""
    assert problem(shared_world.owner.http.get(f"/v1/runs?{query}"), 400, "bad_request")["field"] == "limit"


@pytest.mark.parametrize("cursor", ["x", "..", "%00", "AAAA", "'; DROP TABLE runs; --", "a" * 5000, "é", ""])
def test_a_cursor_is_one_of_ours(shared_world: World, cursor: str) -> None:
    """400 that names it, for every list."""
    thread_id = shared_world.owner.conversation()["thread_id"]
    for path in ("/v1/runs", "/v1/conversations", f"/v1/conversations/{thread_id}/messages"):
        found = problem(shared_world.owner.http.get(path, params={"cursor": cursor}), 400, "bad_request")
        assert found["field"] == "cursor"


def test_pages_work_with_bytes_that_hurt(world: World) -> None:
    """Case: F10. Texts, titles, key names and error texts: what can be stored is unchanged, the rest is marked."""
    headers = {"Content-Type": "application/json"}
    spelled = '"' + "".join(c if 31 < ord(c) < 127 and c != '"' else f"\\u{ord(c):04x}" for c in _utf16(HURTS)) + '"'
    shown = HURTS.replace("\x00", "\ufffd").replace("\ud83d", "\ufffd")
    body = '{"agent": "scripted", "title": %s}'.replace("%s", spelled)
    made = world.owner.http.post("/v1/conversations", content=body, headers=headers)
    assert made.json()["title"] == shown, made.text
    thread_id = made.json()["thread_id"]
    sent = world.owner.http.post(
        f"/v1/conversations/{thread_id}/messages", content='{"text": %s}'.replace("%s", spelled), headers=headers
    )
    assert sent.json()["message"]["text"] == shown
    assert (
        world.owner.http.post("/v1/keys", content='{"name": %s}'.replace("%s", spelled), headers=headers).status_code
        == 201
    )
    turn = world.claim()
    assert turn.prepare()["prompt"] == shown
    turn.admit()
    turn.texts(shown)
    failure = {"code": "agent_exited", "stage": "prompt", "delivered": "yes", "stderr_tail": "x\x00y", "text": "a\x00"}
    turn.ok("finish", {"status": "failed", "failure": failure})
    for path in ("/v1/conversations", "/v1/runs", "/v1/keys", f"/v1/conversations/{thread_id}/messages"):
        assert [item for page in world.owner.pages(path, 1) for item in page]
    run = world.owner.good("GET", f"/v1/runs/{turn.claim['job']}")
    assert run["prompt"] == shown
    assert "x\ufffdy" in str(run["error_detail"])


def test_numbers_above_2_to_the_31(world: World) -> None:
    """Case: F13. Every sequence and counter at 2147483646: turns, events, streams and pages go on as before."""
    for name in ("lease_generations", "queue_positions"):
        world.execute("SELECT setval(%s::regclass, 2147483646)", name)
    thread_id = world.owner.conversation()["thread_id"]
    world.turn("x", thread_id=thread_id)
    world.execute("UPDATE event_counters SET last_seq = 2147483646 WHERE thread_id = %s", thread_id)
    world.execute("UPDATE memberships SET native_turn = 2147483646, fence = 2147483646 WHERE thread_id = %s", thread_id)
    world.execute("UPDATE shared_workspaces SET epoch = 2147483646 WHERE runtime_scope_id = %s", thread_id)
    runs = [world.turn("a", "b", thread_id=thread_id, prompt=f"p{n}") for n in range(10)]
    assert [run["native_turn"] for run in runs] == [2147483647 + n for n in range(10)]
    assert [run["epoch"] for run in runs] == [2147483647 + n for n in range(10)]
    assert runs[-1]["attempts"][0]["lease_generation"] > 2**31
    conversation = world.owner.good("GET", f"/v1/conversations/{thread_id}")
    assert conversation["native_turn"] == 2147483656
    first = f"/v1/conversations/{thread_id}/events?after=2147483646&limit=20"
    events = world.owner.good("GET", first, headers={"Accept": "application/json"})["items"]
    assert len(events) == 20
    events += [one for page in world.owner.pages(f"/v1/conversations/{thread_id}/events", 200) for one in page][-60:]
    events = list({event["seq"]: event for event in events if event["seq"] > 2147483646}.values())
    assert [event["seq"] for event in events] == list(range(2147483647, 2147483647 + len(events)))
    assert [event["kind"] for event in events].count("end") == 10
    path = f"/v1/conversations/{thread_id}/events?after=2147483646"
    with reading(world.server.port, path, world.owner.key, {"Last-Event-ID": "2147483650"}) as reader:
        assert reader.bytes_of(2, 0)[1].seq == 2147483651


def _utf16(text: str) -> str:
    """Characters beyond the basic plane as two halves, as JSON's escapes spell them."""
    data = text.encode("utf-16-be", "surrogatepass")
    return "".join(chr(int.from_bytes(data[i : i + 2], "big")) for i in range(0, len(data), 2))
