"""Twice the same request, and many at once: one effect, one answer."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from api.world import Json, World, problem
from turnkeeper.kit.ids import new_id


def _at_once(world: World, number: int, method: str, path: str, body: Json, key: str) -> list[httpx2.Response]:
    def send(_: int) -> httpx2.Response:
        with httpx2.Client(base_url=world.url, timeout=30, trust_env=False) as client:
            headers = {"Authorization": f"Bearer {world.owner.key}", "Idempotency-Key": key}
            return client.request(method, path, json=body, headers=headers)

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(send, range(number)))


def test_twice_the_same_message(world: World) -> None:
    """Case: F08. 20 at once, again after the end, again with another text: one run, the same id each time, 422."""
    thread_id = world.owner.conversation()["thread_id"]
    path = f"/v1/conversations/{thread_id}/messages"
    answers = _at_once(world, 20, "POST", path, {"text": "once"}, "key-1")
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.content for answer in answers}) == 1
    run_id = answers[0].json()["run"]["id"]
    world.claim().whole("x")
    again = _at_once(world, 3, "POST", path, {"text": "once"}, "key-1")
    assert {answer.json()["run"]["id"] for answer in again} == {run_id}
    assert {answer.content for answer in again} == {answers[0].content}
    other = world.owner.http.post(path, json={"text": "twice"}, headers={"Idempotency-Key": "key-1"})
    problem(other, 422, "idempotency_mismatch")
    assert world.value("SELECT count(*) FROM runs") == 1
    assert world.value("SELECT count(*) FROM messages WHERE role = 'owner'") == 1
    assert world.owner.submit(thread_id, "once")["run"]["id"] != run_id  # without a key it is a new message


def test_the_key_belongs_to_its_owner_route_and_thing(world: World) -> None:
    """The same key elsewhere is another key; in another conversation it is another request, which is refused."""
    first, second = world.owner.conversation(), world.owner.conversation()
    headers = {"Idempotency-Key": "k"}
    run = world.owner.submit(first["thread_id"], "x", headers=headers)["run"]
    path = f"/v1/conversations/{second['thread_id']}/messages"
    problem(world.owner.http.post(path, json={"text": "x"}, headers=headers), 422, "idempotency_mismatch")
    made = world.owner.good("POST", "/v1/conversations", {"agent": "scripted"}, headers=headers)
    eve = world.add_owner("eve")
    theirs = eve.good("POST", "/v1/conversations", {"agent": "scripted"}, headers=headers)
    assert made["thread_id"] != theirs["thread_id"]
    assert eve.submit(theirs["thread_id"], "x", headers=headers)["run"]["id"] != run["id"]


def test_a_refused_request_leaves_its_key_free(world: World) -> None:
    """Nothing was created under it: the same key may be used again once the request makes sense."""
    headers = {"Idempotency-Key": "k"}
    problem(world.owner.http.post("/v1/conversations", json={"agent": "x"}, headers=headers), 422, "unknown_agent")
    assert world.owner.good("POST", "/v1/conversations", {"agent": "scripted"}, headers=headers)["state"] == "open"


def test_the_same_conversation_at_once(world: World) -> None:
    """20 at once create one conversation with one Workdir hold."""
    body = {"agent": "scripted", "workdir": "src"}
    answers = _at_once(world, 20, "POST", "/v1/conversations", body, new_id())
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.content for answer in answers}) == 1
    assert world.value("SELECT count(*) FROM workdir_holds") == 1


def test_a_created_key_is_shown_once(world: World) -> None:
    """The answer with a secret is stored nowhere, so a repeated request is told that it was made."""
    headers = {"Idempotency-Key": "k"}
    made = world.owner.good("POST", "/v1/keys", {"name": "x"}, headers=headers)
    again = world.owner.http.post("/v1/keys", json={"name": "x"}, headers=headers)
    problem(again, 409, "conflict")
    assert made["key"] not in again.text
    assert len(world.owner.good("GET", "/v1/keys")["items"]) == 2


@pytest.mark.parametrize("key", ["", "x" * 256, "ä", "a\tb"])
def test_a_key_has_a_form(shared_world: World, key: str) -> None:
    """1 to 255 printable ASCII characters."""
    headers: dict[str, Any] = {"Idempotency-Key": key.encode("utf-8")}
    answer = shared_world.owner.http.post("/v1/conversations", json={"agent": "scripted"}, headers=headers)
    assert problem(answer, 400, "bad_request")["field"] == "Idempotency-Key"
