"""Bad input: one clear line or problem each, and nothing of our inside."""

import json
import re
import socket
import time
from typing import Any

import pytest

from api.server import control_server
from api.world import World, problem
from turnkeeper.domain.settings import Limits

CONVERSATIONS = "/v1/conversations"


def test_unknown_routes_and_methods(shared_world: World) -> None:
    """404 and 405 are problems too, everywhere; 405 says what is possible."""
    for path in ("/v1/nothing", "/v1/conversations/", "/v1/agent/x", "/nothing", "/openapi.jsonx", "/docs", "/redoc"):
        problem(shared_world.owner.http.get(path), 404, "not_found")
    answer = shared_world.owner.http.put("/v1/me", json={})
    problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"]
    problem(shared_world.client().post("/livez"), 405, "method_not_allowed")


@pytest.mark.parametrize(
    ("body", "field", "says"),
    [
        ({}, "agent", "missing"),
        ({"agent": 7}, "agent", "7"),
        ({"agent": "scripted", "titel": "x"}, "titel", "not a field"),
        ({"agent": "scripted", "title": "x" * 2000}, "title", "1000"),
        ({"agent": "scripted", "title": ["x"]}, "title", "string"),
        ([1], "body", "object"),
        ("x", "body", "object"),
        (None, "body", "object"),
    ],
)
def test_a_refused_field_is_named(shared_world: World, body: Any, field: str, says: str) -> None:
    """The field, its value cut, and what would be right, in one line."""
    answer = shared_world.owner.http.post(
        CONVERSATIONS, content=json.dumps(body), headers={"Content-Type": "application/json"}
    )
    found = problem(answer, 400, "bad_request")
    assert found["field"] == field
    assert says in found["detail"]
    assert len(found["detail"]) < 250


@pytest.mark.parametrize(
    "body", [b"", b"{", b"nonsense", b'{"agent": "scripted",}', b'{"agent": "a\nb"}', b"\xff\xfe", b"[" * 100_000]
)
def test_no_json(shared_world: World, body: bytes) -> None:
    """What is no JSON is told so, wherever it breaks."""
    answer = shared_world.owner.http.post(CONVERSATIONS, content=body, headers={"Content-Type": "application/json"})
    problem(answer, 400, "invalid_json")


def test_another_content_type(shared_world: World) -> None:
    """A form, or nothing, is not JSON (and a page elsewhere can send nothing else)."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        answer = shared_world.owner.http.post(CONVERSATIONS, content=b"{}", headers={"Content-Type": kind})
        problem(answer, 415, "unsupported_media_type")
    answer = shared_world.owner.http.post(
        CONVERSATIONS, content=b'{"agent":"scripted"}', headers={"Content-Type": "Application/JSON; charset=utf-8"}
    )
    assert answer.status_code == 201


def test_unknown_and_removed_agents(world: World) -> None:
    """The name is told back; a removed agent cannot be chosen any more."""
    found = problem(world.owner.http.post(CONVERSATIONS, json={"agent": "nobody"}), 422, "unknown_agent")
    assert "'nobody'" in found["detail"]
    for odd in ("a\0b", "../x", "x" * 200, ""):
        problem(world.owner.http.post(CONVERSATIONS, json={"agent": odd}), 422, "unknown_agent")
    for name in ("nobody", "..", "a%00b", "UPPER", "x" * 300):
        problem(world.owner.http.get(f"/v1/agents/x{name}"), 404, "not_found")
    assert world.owner.http.delete("/v1/agents/scripted").status_code == 200
    problem(world.owner.http.post(CONVERSATIONS, json={"agent": "scripted"}), 422, "unknown_agent")


def test_bad_definitions(world: World) -> None:
    """Each complaint is a line of its own in `complaints`; text that cannot be stored is refused."""
    found = problem(world.owner.http.put("/v1/agents/x", json={"name": "x", "comand": ["a"]}), 400, "bad_request")
    assert found["complaints"]
    problem(world.owner.http.put("/v1/agents/x", json={"name": "y", "command": ["a"]}), 400, "bad_request")
    body = b'{"name": "x", "command": ["a\\u0000b"]}'
    answer = world.owner.http.put("/v1/agents/x", content=body, headers={"Content-Type": "application/json"})
    problem(answer, 400, "bad_request")


def test_prompts_have_a_size(dsn: str) -> None:
    """Empty 422; too large 413 (by its own size, in whatever spelling), the largest one passes whole."""
    with control_server(dsn, limits=Limits(prompt_bytes_max=10_000)) as server:
        world = World(server, dsn)
        path = f"{CONVERSATIONS}/{world.owner.conversation()['thread_id']}/messages"
        for empty in ("", " ", "\n\t"):
            problem(world.owner.http.post(path, json={"text": empty}), 422, "empty_prompt")
        found = problem(world.owner.http.post(path, json={"text": "ä" * 5001}), 413, "prompt_too_large")
        assert (found["size_bytes"], found["size_bytes_max"]) == (10_002, 10_000)
        for whole in ("ä" * 5000, "\u0001" * 10_000, "😀" * 2500):
            for spelled in (json.dumps({"text": whole}), json.dumps({"text": whole}, ensure_ascii=False)):
                answer = world.owner.http.post(
                    path, content=spelled.encode(), headers={"Content-Type": "application/json"}
                )
                assert answer.status_code == 201, answer.text
                assert answer.json()["message"]["text"] == whole
        world.close()


def test_a_body_that_is_too_large(shared_world: World) -> None:
    """413 by the announced length, and while it streams in; the client sees the answer, not a reset."""
    big = b'{"agent": "' + b"x" * 3_000_000 + b'"}'
    answer = shared_world.owner.http.post(CONVERSATIONS, content=big, headers={"Content-Type": "application/json"})
    assert problem(answer, 413, "too_large")["limit_bytes"] == 1024 * 1024
    chunks = (b"x" * 50_000 for _ in range(60))
    answer = shared_world.owner.http.post(CONVERSATIONS, content=chunks, headers={"Content-Type": "application/json"})
    problem(answer, 413, "too_large")
    assert shared_world.owner.http.get("/v1/me").status_code == 200


def test_a_body_that_never_comes(shared_world: World) -> None:
    """A client that announces gigabytes and sends nothing is answered all the same, and holds nothing afterwards."""
    with socket.create_connection(("127.0.0.1", shared_world.server.port), timeout=15) as sock:
        head = (
            f"POST {CONVERSATIONS} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {shared_world.owner.key}\r\n"
            "Content-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n"
        )
        sock.sendall(head.encode())
        assert sock.recv(65536).startswith(b"HTTP/1.1 413")
    assert shared_world.owner.http.get("/v1/me").status_code == 200


@pytest.mark.parametrize(
    "workdir",
    [
        "..",
        "/etc",
        "a/../../b",
        "~",
        "%2e%2e",
        "a\0b",
        "a\ud800b",
        "x" * 300,
        "agents",
        "agents/x",
        "",
        "a//b",
        "a/./b",
        " ",
    ],
)
def test_names_as_paths(shared_world: World, workdir: str) -> None:
    """Case: F14. A Workdir that leads elsewhere, or quietly to another place, is refused by the name of its field."""
    body = json.dumps({"agent": "scripted", "workdir": workdir})
    answer = shared_world.owner.http.post(CONVERSATIONS, content=body, headers={"Content-Type": "application/json"})
    if answer.status_code == 201:  # a legitimate name, which then is kept as it is
        assert answer.json()["workdir"] == workdir
        assert workdir == " "
        return
    assert answer.status_code in (400, 422), answer.text
    assert answer.json()["field"] == "workdir"
    assert workdir not in {one["workdir"] for one in shared_world.owner.good("GET", CONVERSATIONS)["items"]}


def test_legitimate_names_and_holders(world: World) -> None:
    """Case: F14. `v2..v3` and `x;touch y` are names; two conversations never share a directory (D-02)."""
    for workdir in ("v2..v3", "x;touch y", "ünïcode/目录"):
        assert world.owner.conversation(workdir=workdir)["workdir"] == workdir
    holder = world.owner.conversation(workdir="src/app")
    for overlapping in ("src/app", "src", "src/app/deep"):
        answer = world.owner.http.post(CONVERSATIONS, json={"agent": "scripted", "workdir": overlapping})
        found = problem(answer, 409, "workdir_held")
        assert found["holder"] == holder["thread_id"]
        assert found["state"] == "open"
    assert world.add_owner("eve").conversation(workdir="src/app")["workdir"] == "src/app"


def test_the_states_of_a_conversation(world: World) -> None:
    """A closed conversation takes no message; a full line says that it is full."""
    thread_id = world.owner.conversation()["thread_id"]
    path = f"{CONVERSATIONS}/{thread_id}/messages"
    for n in range(100):
        world.owner.submit(thread_id, f"m{n}")
    full = problem(world.owner.http.post(path, json={"text": "one more"}), 409, "queue_full")
    assert "100" in full["detail"]
    assert world.owner.http.delete(f"{CONVERSATIONS}/{thread_id}").json()["state"] == "closed"
    problem(world.owner.http.post(path, json={"text": "x"}), 409, "conversation_closed")
    runs = [run for page in world.owner.pages(f"{CONVERSATIONS}/{thread_id}/runs", 50) for run in page]
    assert {run["status"] for run in runs} <= {"failed", "cancelled"}
    assert all(run["error_text"] for run in runs)


def test_a_defect_shows_an_id_and_nothing_else(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    """500 with code internal; the log has the exception under that id, the answer has neither text nor traceback."""
    thread_id = world.owner.conversation()["thread_id"]
    world.execute("ALTER TABLE messages RENAME COLUMN text TO secret_column")
    for path in (f"{CONVERSATIONS}/{thread_id}/messages",):
        found = problem(world.owner.http.get(path), 500, "internal")
        assert "secret_column" not in json.dumps(found)
        log = capfd.readouterr().err
        assert found["error_id"] in log
        assert "UndefinedColumn" in log
        assert '"route": "conversations/{thread_id}/messages"' in log
        assert found["error_id"] in found["detail"]
    assert world.owner.http.get("/v1/me").status_code == 200


def test_the_database_is_away(dsn: str, capfd: pytest.CaptureFixture[str]) -> None:
    """503 and retryable, not ready but alive; and all is well again when it is back. Told without an address (E-02)."""
    with control_server(dsn, pool_wait_s=0.5) as server:
        world = World(server, dsn)
        name = world.value("SELECT current_database()")
        kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
        _elsewhere(world, f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        _elsewhere(world, kill, name)
        found = problem(world.owner.http.get("/v1/me"), 503, "upstream_unavailable")
        assert found["retryable"] is True
        assert name not in json.dumps(found)
        (line,) = [one for one in capfd.readouterr().err.splitlines() if '"database_unavailable"' in one]
        assert '"route": "me"' in line
        assert "/v1" not in line
        problem(world.client().get("/readyz"), 503, "not_ready")
        assert world.client().get("/livez").status_code == 200
        assert "turnkeeper_http_request_seconds" in world.client().get("/metrics").text
        _elsewhere(world, f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
        end = time.monotonic() + 30
        while world.owner.http.get("/v1/me").status_code != 200:
            assert time.monotonic() < end, "the server did not come back"
        world.close()


def test_secrets_are_not_told_back(shared_world: World) -> None:
    """A key that was put into the wrong field is not repeated in the refusal."""
    answer = shared_world.owner.http.post(
        CONVERSATIONS, json={"agent": "scripted", shared_world.owner.key: shared_world.owner.key}
    )
    assert shared_world.owner.key not in answer.text
    answer = shared_world.owner.http.post(CONVERSATIONS, json={"agent": ["Bearer " + shared_world.owner.key]})
    assert shared_world.owner.key not in answer.text


def test_the_description_is_whole(shared_world: World) -> None:
    """OpenAPI: every route of `wire.public`, each reference resolved, each operation with its refusal."""
    document = shared_world.client().get("/openapi.json").json()
    assert document["openapi"].startswith("3.")
    text = json.dumps(document)
    for reference in set(re.findall(r'"#/components/schemas/([^"]+)"', text)):
        assert reference in document["components"]["schemas"], reference
    for path, methods in {
        "/v1/conversations": {"get", "post"},
        "/v1/conversations/{thread_id}": {"get", "delete"},
        "/v1/conversations/{thread_id}/messages": {"get", "post"},
        "/v1/conversations/{thread_id}/events": {"get"},
        "/v1/conversations/{thread_id}/runs": {"get"},
        "/v1/runs": {"get"},
        "/v1/runs/{run_id}": {"get"},
        "/v1/runs/{run_id}/cancel": {"post"},
        "/v1/runs/{run_id}/events": {"get"},
        "/v1/agents": {"get"},
        "/v1/agents/{name}": {"get", "put", "delete"},
        "/v1/keys": {"get", "post"},
        "/v1/keys/{key_id}": {"delete"},
        "/v1/me": {"get", "patch"},
        "/v1/admin/servers": {"get"},
        "/v1/admin/users": {"get", "post"},
        "/v1/admin/hosts/{name}/tokens": {"get", "post", "delete"},
        "/v1/admin/hosts/{name}/tokens/{token_id}": {"delete"},
    }.items():
        assert set(document["paths"][path]) == methods, path
        for operation in document["paths"][path].values():
            assert "application/problem+json" in operation["responses"]["default"]["content"]
    assert "http://" not in text
    assert "https://" not in text


def _elsewhere(world: World, statement: str, *params: object) -> None:
    import psycopg
    from psycopg.conninfo import make_conninfo

    with psycopg.connect(make_conninfo(world.dsn, dbname="postgres"), autocommit=True) as connection:
        connection.execute(statement.encode(), params or None)
