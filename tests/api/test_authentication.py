"""Who may do what: keys, sessions, roles, other people's things, and names under which the server is asked."""

import socket

import httpx2
import pytest

from api.world import HOST, World, problem
from turnkeeper.kit.ids import new_id, new_secret

UNAUTHORIZED = [
    {},
    {"Authorization": ""},
    {"Authorization": "Bearer"},
    {"Authorization": "Basic dGs6eA=="},
    {"Authorization": "Bearer tk_wrong"},
    {"Authorization": "Bearer " + "x" * 5000},
    {"Authorization": "Bearer a b"},
    {"Cookie": "turnkeeper=tk_x"},
]


def test_without_a_good_key_nothing_opens(shared_world: World) -> None:
    """401 with the way in, whatever is wrong with the key; the same for every route."""
    for headers in UNAUTHORIZED:
        for method, path in (
            ("GET", "/v1/me"),
            ("POST", "/v1/conversations"),
            ("GET", "/v1/runs"),
            ("GET", f"/v1/runs/{new_id()}/events"),
            ("POST", "/v1/admin/users"),
        ):
            answer = shared_world.client().request(method, path, headers=headers, json={} if method == "POST" else None)
            problem(answer, 401, "unauthorized")
            assert answer.headers["www-authenticate"].startswith("Bearer")


def test_a_revoked_key_opens_nothing_at_once(world: World) -> None:
    """No cache keeps a key alive. A key is shown once, and its prefix afterwards."""
    made = world.owner.good("POST", "/v1/keys", {"name": "laptop"})
    with_key = world.client(made["key"])
    for _ in range(3):
        assert with_key.get("/v1/me").json()["name"] == "ada"
    listed = world.owner.good("GET", "/v1/keys")["items"]
    assert made["id"] in {one["id"] for one in listed}
    assert made["key"] not in str(listed)
    assert world.owner.http.delete(f"/v1/keys/{made['id']}").json()["revoked_at"]
    problem(with_key.get("/v1/me"), 401, "unauthorized")
    assert world.owner.http.delete(f"/v1/keys/{made['id']}").status_code == 200


def test_other_peoples_things_are_not_there(world: World) -> None:
    """404 for somebody else's ids, the same as for ids that do not exist and for what is no id (F14)."""
    run = world.turn("x")
    key = world.owner.good("POST", "/v1/keys", {"name": "k"})
    eve = world.add_owner("eve", role="owner").http
    odd = [
        new_id(),
        "x",
        "%2e%2e",
        "..%2f..%2fetc%2fpasswd",
        "~",
        "a" * 300,
        "x;touch%20y",
        "%00",
        "%ff",
        "v2..v3",
    ]
    for thread_id in (run["thread_id"], *odd):
        one = f"/v1/conversations/{thread_id}"
        for method, path in (
            ("GET", one),
            ("DELETE", one),
            ("GET", one + "/messages"),
            ("GET", one + "/runs"),
            ("GET", one + "/events"),
        ):
            assert _request(world, eve, method, path).status_code in (404, 405), (method, path)
        answer = _request(world, eve, "POST", one + "/messages", {"text": "hi"})
        assert answer.status_code in (404, 405)
    for run_id in (run["id"], *odd):
        for method, path in (
            ("GET", f"/v1/runs/{run_id}"),
            ("GET", f"/v1/runs/{run_id}/events"),
            ("POST", f"/v1/runs/{run_id}/cancel"),
        ):
            assert _request(world, eve, method, path).status_code in (404, 405), (method, path)
    for key_id in (key["id"], *odd):
        assert _request(world, eve, "DELETE", f"/v1/keys/{key_id}").status_code in (404, 405)
    assert eve.get("/v1/conversations").json()["items"] == []
    assert eve.get("/v1/runs").json()["items"] == []
    assert world.owner.good("GET", f"/v1/runs/{run['id']}")["status"] == "completed"


def test_values_of_an_agent_s_environment_are_for_administrators(world: World) -> None:
    """Proves: K-11. Others see which variables there are; nothing else of a definition holds a value."""
    definition = {"name": "with-env", "command": ["agent"], "env": {"TOKEN": "hunter2", "LEVEL": "warn"}}
    world.owner.good("PUT", "/v1/agents/with-env", definition)
    shown = world.owner.good("GET", "/v1/agents/with-env")["definition"]
    assert shown["env"] == definition["env"]
    eve = world.add_owner("eve", role="owner").http
    answer = eve.get("/v1/agents/with-env")
    assert answer.json()["definition"] == {
        **shown,
        "env": dict.fromkeys(("TOKEN", "LEVEL"), "(shown to administrators)"),
    }
    assert "hunter2" not in answer.text + eve.get("/v1/agents").text
    assert "env" not in eve.get("/v1/agents/scripted").json()["definition"]


def test_an_owner_is_no_administrator(world: World) -> None:
    """403 for the admin API and for changing agents; reading agents is for everybody."""
    eve = world.add_owner("eve", role="owner").http
    problem(eve.get("/v1/admin/servers"), 403, "forbidden")
    problem(eve.get("/v1/admin/users"), 403, "forbidden")
    problem(eve.post("/v1/admin/users", json={"name": "x"}), 403, "forbidden")
    for method in ("POST", "GET", "DELETE"):
        problem(eve.request(method, f"/v1/admin/hosts/{HOST}/tokens"), 403, "forbidden")
    problem(eve.delete(f"/v1/admin/hosts/{HOST}/tokens/{new_id()}"), 403, "forbidden")
    for what in ("keys", "login-links"):
        problem(eve.post(f"/v1/admin/users/{world.owner.uid}/{what}", json={"name": "x"}), 403, "forbidden")
    problem(eve.put("/v1/agents/scripted", json={"name": "scripted", "command": ["sh"]}), 403, "forbidden")
    problem(eve.delete("/v1/agents/scripted"), 403, "forbidden")
    assert [one["name"] for one in eve.get("/v1/agents").json()["items"]] == ["scripted"]
    assert world.owner.good("POST", "/v1/admin/users", {"name": "bob"})["role"] == "owner"
    problem(world.owner.http.post("/v1/admin/users", json={"name": "bob"}), 409, "conflict")
    assert (
        problem(world.owner.http.post("/v1/admin/users", json={"name": "../x"}), 400, "bad_request")["field"] == "name"
    )


def test_a_user_is_given_a_key_and_a_link(world: World) -> None:
    """Both are shown once and open as that user; nobody's id is not found."""
    lin = world.owner.good("POST", "/v1/admin/users", {"name": "lin", "language": "zh"})
    made = world.owner.good("POST", f"/v1/admin/users/{lin['uid']}/keys", {"name": "first"})
    with_key = world.client(made["key"])
    assert with_key.get("/v1/me").json() == lin
    link = with_key.post("/v1/me/login-links").json()
    given = world.owner.good("POST", f"/v1/admin/users/{lin['uid']}/login-links")
    for one in (link, given):
        browser = world.client(follow_redirects=False)
        assert browser.get(one["path"]).status_code == 303
        assert browser.get("/v1/me").json()["name"] == "lin"
        assert world.client().get(one["path"]).status_code == 401, "once"
        problem(browser.post("/v1/me/login-links"), 401, "unauthorized")
    for nobody in (new_id(), "x"):
        problem(world.owner.http.post(f"/v1/admin/users/{nobody}/keys", json={"name": "x"}), 404, "not_found")
        problem(world.owner.http.post(f"/v1/admin/users/{nobody}/login-links"), 404, "not_found")


def test_a_browsers_session_reads_and_does_not_write(world: World) -> None:
    """The cookie opens reading routes alone: a browser sends it with requests that other pages made."""
    run = world.turn("x")
    browser = world.client(follow_redirects=False)
    assert browser.get(world.login_link()).status_code == 303
    assert browser.get("/v1/me").json()["name"] == "ada"
    assert browser.get(f"/v1/runs/{run['id']}").status_code == 200
    problem(browser.post("/v1/conversations", json={"agent": "scripted"}), 401, "unauthorized")
    problem(browser.post(f"/v1/runs/{run['id']}/cancel"), 401, "unauthorized")
    problem(browser.delete(f"/v1/conversations/{run['thread_id']}"), 401, "unauthorized")
    problem(browser.patch("/v1/me", json={"language": "zh"}), 401, "unauthorized")
    browser.cookies.set(f"turnkeeper_{world.server.port}", new_secret("tk_"), domain="127.0.0.1")


def test_problems_speak_the_owners_language(world: World) -> None:
    """The owner's setting decides; before the owner is known, what the browser asks for."""
    assert world.owner.http.patch("/v1/me", json={"language": "zh"}).json()["language"] == "zh"
    chinese = problem(world.owner.http.get(f"/v1/runs/{new_id()}"), 404, "not_found")
    assert chinese["title"] == "找不到该内容"
    run = world.owner.submit(world.owner.conversation()["thread_id"])["run"]
    assert world.owner.good("POST", f"/v1/runs/{run['id']}/cancel")["error_text"] == "本轮已取消。"
    asked = world.client().get("/v1/me", headers={"Accept-Language": "fr, zh-CN;q=0.8, en;q=0.5"})
    assert problem(asked, 401, "unauthorized")["title"] == "需要有效的密钥"
    assert problem(world.client().get("/v1/me"), 401, "unauthorized")["title"] == "A valid key is needed"


def test_details_speak_the_owners_language(world: World) -> None:
    """Codes, fields and values are the same in both; what a detail was said in English only stays that."""
    http = world.owner.http
    thread, held = (world.owner.conversation()["thread_id"] for _ in range(2))
    place = world.owner.good("GET", f"/v1/conversations/{held}")["workdir"]
    assert http.delete(f"/v1/conversations/{thread}").status_code in (200, 202, 204)

    def details() -> list[str]:
        asked = {
            "empty_prompt": http.post(f"/v1/conversations/{held}/messages", json={"text": " "}),
            "conversation_closed": http.post(f"/v1/conversations/{thread}/messages", json={"text": "x"}),
            "workdir_held": http.post("/v1/conversations", json={"agent": "scripted", "workdir": place}),
            "unknown_agent": http.post("/v1/conversations", json={"agent": "none"}),
            "bad_request": http.post("/v1/conversations", json={"agnt": "none", "x": 1}),
            "not_found": http.get(f"/v1/runs/{new_id()}"),
        }
        return [problem(answer, answer.status_code, code)["detail"] for code, answer in asked.items()]

    assert all(detail.isascii() for detail in details())
    assert http.patch("/v1/me", json={"language": "zh"}).json()["language"] == "zh"
    empty, closed, workdir, unknown, bad, missing = details()
    assert empty == "消息为空，请至少输入一个字符"
    assert closed == f"对话 {thread} 已关闭，请开始新的对话"
    assert f"与对话 {held}（open）占用的" in workdir
    assert unknown == "没有名为 'none' 的智能体，请查看智能体列表"
    assert bad == "缺少 agent（另有 2 处）"
    assert missing == "找不到该运行"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example:8420", "", "10.0.0.1", "[::1].evil", "[", "127.0.0.1:x", "127.0.0.1:1:2"],
)
def test_another_name_is_refused(shared_world: World, host: str) -> None:
    """A page of another site whose name points here (DNS rebinding) says its own name, and gets nothing."""
    for path in ("/v1/me", "/conversations", "/login?token=x", "/openapi.json", "/static/style.css"):
        answer = shared_world.owner.http.get(path, headers={"Host": host})
        refused = problem(answer, 403, "host_not_allowed")
        assert "TURNKEEPER_ALLOWED_HOSTS" in refused["title"]
        assert "--allowed-host" in refused["detail"]
    for good in ("127.0.0.1:99999", "localhost:", "[::1]:80"):
        assert shared_world.owner.http.get("/v1/me", headers={"Host": good}).status_code == 200
        assert shared_world.client().get("/conversations", headers={"Host": good}).status_code == 401
    assert (
        shared_world.owner.http.get("/v1/me", headers={"Host": f"LocalHost:{shared_world.server.port}"}).status_code
        == 200
    )


def _request(world: World, client: httpx2.Client, method: str, path: str, body: object = None) -> httpx2.Response:
    """A request whose path goes out as it is written, percent signs and all."""
    request = client.build_request(method, world.url, json=body)
    request.url = request.url.copy_with(raw_path=path.encode())
    return client.send(request)


def test_raw_paths_do_not_leave_their_route(shared_world: World) -> None:
    """Case: F14. Dots, NULs and broken bytes in the request line: a clean refusal, and the connection's server lives."""
    for raw in (
        b"/v1/../../etc/passwd",
        b"/static/..%2f..%2fapp.py",
        b"/static/../app.py",
        b"/\xff\xfe",
        b"/v1/runs/\x00",
        b"//",
        b"*",
    ):
        with socket.create_connection(("127.0.0.1", shared_world.server.port), timeout=10) as sock:
            sock.sendall(b"GET " + raw + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            answer = b""
            while data := sock.recv(65536):
                answer += data
        assert answer[:12] in (b"HTTP/1.1 404", b"HTTP/1.1 400", b"HTTP/1.1 401"), (raw, answer[:200])
        assert b"Traceback" not in answer
        assert b"root:" not in answer
    assert shared_world.owner.http.get("/v1/me").status_code == 200


def test_tokens_of_hosts(world: World) -> None:
    """Shown once, at their creation; a revoked one opens nothing from the next request on, and the others stay good."""
    path = "/v1/admin/hosts/second/tokens"
    first, second = (world.owner.good("POST", path) for _ in range(2))
    body = {"incarnation": new_id(), "version": "1", "capacity": 1, "provisioner": "local", "state": "ready"}

    def beat(token: str) -> int:
        return world.client(token).post("/v1/agent/hosts/second/heartbeat", json=body).status_code

    assert (beat(first["token"]), beat(second["token"])) == (200, 200)
    assert second["token"] not in str(world.owner.good("GET", path))
    assert world.owner.http.delete(f"{path}/{first['id']}").json()["revoked_at"]
    assert (beat(first["token"]), beat(second["token"])) == (401, 200)
    assert [one["revoked_at"] is None for one in world.owner.good("GET", path)["items"]] == [False, True]
    assert all(one["revoked_at"] for one in world.owner.http.delete(path).json()["items"])
    assert beat(second["token"]) == 401
    problem(world.owner.http.delete(f"{path}/{new_id()}"), 404, "not_found")
    assert problem(world.owner.http.post("/v1/admin/hosts/a%20b/tokens"), 400, "bad_request")["field"] == "name"
    assert "second" in {one["name"] for one in world.owner.good("GET", "/v1/admin/servers")["items"]}
