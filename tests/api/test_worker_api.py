"""The worker and host API over real HTTP: one turn from its claim to its end, and what tokens open."""

import threading
import time
from typing import Any

import pytest

from api.reading import reading
from api.world import HOST, World, problem
from turnkeeper.kit.ids import new_id, new_secret


def test_a_turn_over_http(world: World) -> None:
    """Proves: A-01, A-02, A-03, A-04, F-06. A turn's calls in their order; what the owner reads afterwards."""
    thread = world.owner.conversation(title="T")
    run = world.owner.submit(thread["thread_id"], "do it")["run"]
    assert world.host.get("/v1/agent/worker/work", params={"wait": 0}).json() == {"maybe": True}
    turn = world.claim()
    assert turn.claim["job"] == run["id"]
    assert turn.prepare()["prompt"] == "do it"
    assert turn.ok("heartbeat")["cancel_requested"] is False
    receipt = turn.admit()
    assert receipt["job"] == run["id"]
    assert turn.texts("a", "b")["next"] == 3
    settled = turn.settle("all done")
    assert (settled["native_turn"], settled["epoch"]) == (1, 1)
    assert turn.settle("all done") == settled
    turn.events({"kind": "shared_workspace_settled", "data": {"epoch": 1}})
    changes = {"files": [{"path": "a.txt", "status": "added", "added_lines": 1, "diff": "+x"}], "added_lines": 1}
    snapshot = {"tree_id": "a" * 40, "changes": changes, "files": 1}
    assert turn.finish(snapshot=snapshot) == {"status": "completed"}

    detail = world.owner.good("GET", f"/v1/runs/{run['id']}")
    assert (detail["status"], detail["output"], detail["native_turn"], detail["epoch"]) == (
        "completed",
        "all done",
        1,
        1,
    )
    assert detail["manifest_sha256"]
    assert [attempt["outcome"] for attempt in detail["attempts"]] == ["completed"]
    assert detail["snapshot"]["changes"]["files"][0]["path"] == "a.txt"
    messages = world.owner.good("GET", f"/v1/conversations/{thread['thread_id']}/messages")["items"]
    assert [(m["role"], m["text"], m["delivery"]) for m in messages] == [
        ("owner", "do it", "delivered"),
        ("assistant", "all done", None),
    ]


def test_a_worker_token_opens_its_own_job_alone(world: World) -> None:
    """Unknown token 401, another job's 403, no such job 404 (architecture 4)."""
    for _ in range(2):
        world.owner.submit(world.owner.conversation()["thread_id"])
    mine, other = world.claim(), world.claim()
    body = {"lease_generation": mine.claim["lease_generation"]}
    path = "/v1/agent/worker/jobs/{}/heartbeat"
    unauthorized = world.client(new_secret("tkw_")).post(path.format(mine.claim["job"]), json=body)
    problem(unauthorized, 401, "unauthorized")
    assert unauthorized.headers["www-authenticate"].startswith("Bearer")
    problem(world.client().post(path.format(mine.claim["job"]), json=body), 401, "unauthorized")
    problem(mine.call("heartbeat", token=other.claim["worker_token"]), 403, "forbidden")
    worker = world.client(mine.claim["worker_token"])
    problem(worker.post(path.format(new_id()), json=body), 404, "not_found")
    for odd in ("x", "..%2f..%2fetc", "%00", "a" * 300, "x;touch%20y"):
        assert worker.post(path.format(odd), json=body).status_code in (403, 404)
    assert mine.call("heartbeat").status_code == 200


def test_a_stale_lease_is_refused(world: World) -> None:
    """Proves: L-05, L-11. Another generation, and an ended attempt: 409 on every write."""
    world.owner.submit(world.owner.conversation()["thread_id"])
    turn = world.claim()
    generation = turn.claim["lease_generation"]
    problem(turn.call("heartbeat", {"lease_generation": generation + 1}), 409, "lease_refused")
    turn.prepare()
    turn.ok("finish", {"status": "failed", "failure": _failure()})
    for verb in ("heartbeat", "prepare", "activate", "events"):
        bodies: dict[str, Any] = {
            "prepare": {"worker": "w"},
            "activate": {"generation": "g", "boot_id": "b"},
            "events": {"first": 1, "events": [{"n": 1, "kind": "text", "data": {}}]},
        }
        problem(turn.call(verb, bodies.get(verb)), 409, "lease_refused")


def test_a_cancel_reaches_a_waiting_worker(world: World) -> None:
    """Proves: T-03. The signals call returns as soon as a cancel is requested, and says when the attempt is over."""
    world.owner.submit(world.owner.conversation()["thread_id"])
    turn = world.claim()
    path = f"/v1/agent/worker/jobs/{turn.claim['job']}/signals"
    worker = world.client(turn.claim["worker_token"])
    assert worker.get(path, params={"wait": 0}).json() == {"cancel_requested": False, "ended": False}
    assert world.owner.good("POST", f"/v1/runs/{turn.claim['job']}/cancel")["status"] == "cancel_requested"
    assert worker.get(path, params={"wait": 10}).json()["cancel_requested"] is True
    assert turn.ok("heartbeat")["cancel_requested"] is True


@pytest.mark.parametrize("wait", ["x", "-1", "nan", "inf", "1e999", ""])
def test_a_wait_is_a_number_of_seconds(shared_world: World, wait: str) -> None:
    """A refusal names the field."""
    found = problem(shared_world.host.get("/v1/agent/worker/work", params={"wait": wait}), 400, "bad_request")
    assert found["field"] == "wait"


def test_a_server_that_stops_waits_for_nobody(world: World) -> None:
    """A host that waits for work, and readers of a stream that goes on, are answered at once when the server stops."""
    thread_id = world.owner.conversation()["thread_id"]
    answers: list[Any] = []
    waiting = threading.Thread(
        target=lambda: answers.append(world.host.get("/v1/agent/worker/work", params={"wait": 25}, timeout=30).json())
    )
    waiting.start()
    with reading(world.server.port, f"/v1/conversations/{thread_id}/events", world.owner.key) as reader:
        reader.bytes_of(1, 0)
        began = time.monotonic()
        world.server.stop()
        assert list(reader.frames()) == []
        assert reader.ended
    waiting.join(10)
    assert answers == [{"maybe": False}]
    assert time.monotonic() - began < 10


def test_a_host_speaks_for_itself_alone(world: World) -> None:
    """A host token opens its own host's routes; a lost claim reply is answered again with the same attempt (D-05)."""
    body = {"incarnation": new_id(), "version": "1", "capacity": 1, "provisioner": "local", "state": "ready"}
    problem(world.host.post("/v1/agent/hosts/host-2/heartbeat", json=body), 403, "forbidden")
    problem(world.owner.http.post(f"/v1/agent/hosts/{HOST}/heartbeat", json=body), 401, "unauthorized")
    world.owner.submit(world.owner.conversation()["thread_id"])
    claim = {"claim_id": new_id(), "incarnation": world.incarnation, "rooms": 1}
    first, second = (world.host.post("/v1/agent/worker/claim", json=claim).json()["claim"] for _ in range(2))
    assert first["attempt"] == second["attempt"]
    assert first["worker_token"] != second["worker_token"]
    servers = world.owner.good("GET", "/v1/admin/servers")["items"]
    assert [(one["name"], one["state"], one["live_trees"]) for one in servers] == [(HOST, "ready", 1)]


def test_bad_bodies_of_workers(world: World) -> None:
    """A field that nobody knows, a missing one, and no JSON: one line that names it."""
    world.owner.submit(world.owner.conversation()["thread_id"])
    turn = world.claim()
    found = problem(turn.call("heartbeat", {"more": 1}), 400, "bad_request")
    assert "more" in found["detail"]
    assert problem(turn.call("prepare"), 400, "bad_request")["field"] == "worker"
    path = f"/v1/agent/worker/jobs/{turn.claim['job']}/heartbeat"
    worker = world.client(turn.claim["worker_token"])
    problem(worker.post(path, content=b"{"), 400, "invalid_json")
    problem(worker.post(path, content=b""), 400, "invalid_json")
    problem(worker.get(path), 405, "method_not_allowed")
    problem(worker.post("/v1/agent/worker/nothing"), 404, "not_found")


def test_unstorable_text_of_an_agent_is_replaced(world: World) -> None:
    """Case: F10. NUL, half a surrogate pair and NaN in a batch: stored with their places marked, and the turn settles."""
    thread_id = world.owner.conversation()["thread_id"]
    run = world.owner.submit(thread_id)["run"]
    turn = world.claim()
    turn.prepare()
    turn.admit()
    path = f"/v1/agent/worker/jobs/{turn.claim['job']}/events"
    worker = world.client(turn.claim["worker_token"])
    body = (
        '{"lease_generation": LEASE, "first": 1, "events": [{"n": 1, "kind": "text", "data": '
        '{"text": "a\\u0000b\\ud83dc \\ud83d\\ude00 \\\\u0000", "x\\u0000": NaN}}]}'
    ).replace("LEASE", str(turn.claim["lease_generation"]))
    assert worker.post(path, content=body.encode()).json() == {"next": 2}
    broken = body.replace('"first": 1', '"first": 2').replace('"n": 1', '"n": 2').encode().replace(b"c ", b"\xff\xfe ")
    assert worker.post(path, content=broken).json() == {"next": 3}
    turn.settle("x\ufffdy")
    turn.finish()
    events = world.owner.good("GET", f"/v1/runs/{run['id']}/events", headers={"Accept": "application/json"})["items"]
    texts = [event["data"] for event in events if event["kind"] == "text"]
    assert texts[0] == {"text": "a\ufffdb\ufffdc \U0001f600 \\u0000", "x\ufffd": "nan"}
    assert "\ufffd\ufffd" in texts[1]["text"]


def _failure() -> dict[str, Any]:
    return {"code": "preparation_failed", "stage": "prepare", "delivered": "no"}
