"""The owner's pages over plain HTTP: signing in, forms, and what they refuse."""

import re

import httpx2
import pytest

from api.world import World, problem
from harness.postgres import wait_until
from turnkeeper.kit.ids import new_id

PAGE = {"Accept": "text/html"}


class Visitor:
    """A browser without JavaScript, as far as the pages need one."""

    def __init__(self, world: World) -> None:
        self.http = world.client()
        self.http.headers.update(PAGE)
        self.csrf = ""

    def sign_in(self, world: World) -> "Visitor":
        """Open a one-time link."""
        answer = self.http.get(world.login_link())
        assert answer.status_code == 303
        assert answer.headers["location"] == "/conversations"
        self.page("/conversations")
        return self

    def page(self, path: str, status: int = 200) -> str:
        """A page's text."""
        answer = self.http.get(path)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"].startswith("text/html")
        assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
        assert answer.headers["cache-control"] == "no-store"
        found = re.search(r'name="csrf" value="([^"]+)"', answer.text)
        self.csrf = found.group(1) if found else self.csrf
        return answer.text

    def post(self, path: str, **fields: str) -> httpx2.Response:
        """A form of ours."""
        return self.http.post(path, data={"csrf": self.csrf, **fields})


def test_a_link_opens_one_session_once(world: World) -> None:
    """The cookie is http-only and same-site; a second use, a prefetch and a HEAD open nothing."""
    link = world.login_link()
    visitor = Visitor(world)
    assert visitor.http.head(link).status_code == 401
    assert visitor.http.get(link, headers={"Sec-Purpose": "prefetch"}).status_code == 401
    answer = visitor.http.get(link)
    assert answer.status_code == 303
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"turnkeeper_{world.server.port}=tk_")
    for part in ("HttpOnly", "SameSite=lax", "Path=/"):
        assert part in cookie
    assert "New conversation" in visitor.page("/conversations")
    assert visitor.http.get(link).headers["location"] == "/conversations"  # signed in already
    other = Visitor(world)
    assert "used already" in other.page(link, 401)
    other.page("/conversations", 401)
    other.page("/login?token=" + "x" * 5000, 401)
    other.page("/login", 401)


def test_signing_out_holds_at_once(world: World) -> None:
    """The session ends on the server; the old cookie opens nothing any more."""
    visitor = Visitor(world).sign_in(world)
    cookie = visitor.http.cookies[f"turnkeeper_{world.server.port}"]
    assert "signed out" in visitor.post("/logout").text
    copy = world.client(cookies={f"turnkeeper_{world.server.port}": cookie})
    assert copy.get("/conversations", headers=PAGE).status_code == 401
    problem(copy.get("/v1/me"), 401, "unauthorized")


def test_a_conversation_without_javascript(world: World) -> None:
    """New conversation, message, reply with its changes, cancel, close: by forms and links alone."""
    visitor = Visitor(world).sign_in(world)
    made = visitor.post("/conversations", agent="scripted", title="My <b>task</b>", workdir="", key=new_id())
    assert made.status_code == 303
    path = made.headers["location"]
    page = visitor.page(path)
    assert "My &lt;b&gt;task&lt;/b&gt;" in page
    key = new_id()
    for _ in range(2):  # a form that is sent twice does its work once
        sent = visitor.post(path + "/messages", text="do\r\nit", key=key)
        assert sent.status_code == 303
        assert sent.headers["location"].startswith(path + "#turn-")
    turn = world.claim()
    assert turn.prepare()["prompt"] == "do\nit"
    assert "working" in visitor.page(path)
    turn.admit()
    turn.settle("**done**, <script>alert(1)</script>")
    changes = {
        "files": [
            {
                "path": "a/<i>.txt",
                "status": "added",
                "added_lines": 1,
                "removed_lines": 0,
                "diff": "@@ -0,0 +1 @@\n+<b>x</b>",
            },
            {"path": "logo.png", "status": "modified", "binary": True},
        ],
        "added_lines": 1,
        "omitted_files": 3,
    }
    turn.finish(snapshot={"tree_id": "a" * 40, "changes": changes})
    page = visitor.page(path)
    for text in (
        "<strong>done</strong>, &lt;script&gt;",
        "Changed files: 5",
        "a/&lt;i&gt;.txt",
        '<span class="add">+&lt;b&gt;x&lt;/b&gt;',
        "not shown as text",
        "3 more files are not listed",
        "turn 1",
        "epoch 1",
    ):
        assert text in page, text
    assert "<script>alert" not in page
    run_id = turn.claim["job"]
    assert "host-1" in visitor.page(f"/runs/{run_id}")
    waiting = visitor.post(path + "/messages", text="again", key=new_id()).headers["location"].split("#turn-")[1]
    assert visitor.post(f"/runs/{waiting}/cancel").status_code == 303
    assert "The turn was cancelled." in visitor.page(path)
    assert visitor.post(path + "/close").status_code == 303
    page = visitor.page(path)
    assert "This conversation is closed." in page
    assert "<textarea" not in page
    refused = visitor.post(path + "/messages", text="x", key=new_id())
    assert refused.status_code == 409
    assert "The conversation is closed" in refused.text


def test_refused_forms_keep_what_was_written(world: World) -> None:
    """One line above the page, and the fields as they were."""
    visitor = Visitor(world).sign_in(world)
    answer = visitor.post("/conversations", agent="scripted", title="kept title", workdir="../x", key=new_id())
    assert answer.status_code == 422
    for text in ('role="alert"', 'value="kept title"', 'value="../x"', "The Workdir is not a valid path"):
        assert text in answer.text
    assert visitor.post("/conversations", agent="nobody", key=new_id()).status_code == 422
    assert visitor.post("/conversations", agent="scripted", workdir="a\0b").status_code == 422
    assert visitor.post("/conversations").status_code == 422
    path = visitor.post("/conversations", agent="scripted", key=new_id()).headers["location"]
    assert visitor.post(path + "/messages", text=" \n ", key=new_id()).status_code == 422
    large = visitor.post(path + "/messages", text="x" * (1024 * 1024 + 1), key=new_id())
    assert large.status_code == 422
    assert "The message is too large" in large.text
    assert visitor.post(path + "/messages", text="x" * 5_000_000).status_code == 413
    script = visitor.http.post(
        path + "/messages", data={"csrf": visitor.csrf, "text": " "}, headers={"Accept": "application/json"}
    )
    problem(script, 422, "empty_prompt")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_posts_from_elsewhere_are_refused(world: World, headers: dict[str, str]) -> None:
    """Even with a good token: the browser itself says where a post comes from."""
    visitor = Visitor(world).sign_in(world)
    answer = visitor.http.post("/conversations", data={"csrf": visitor.csrf, "agent": "scripted"}, headers=headers)
    assert answer.status_code == 403
    assert world.value("SELECT count(*) FROM conversations") == 0


def test_a_proxy_that_ends_tls_does_not_shut_the_forms(world: World) -> None:
    """The browser says https and the name that the proxy passes on."""
    visitor = Visitor(world).sign_in(world)
    visitor.http.headers["Origin"] = f"https://127.0.0.1:{world.server.port}"
    assert visitor.post("/conversations", agent="scripted", title="", workdir="", key=new_id()).status_code == 303


def test_posts_need_the_token_of_their_session(world: World) -> None:
    """Missing, wrong and another session's: refused, and nothing is done."""
    mine = Visitor(world).sign_in(world)
    other = Visitor(world).sign_in(world)
    for csrf in ("", "x", other.csrf, mine.csrf + "x"):
        answer = mine.http.post("/conversations", data={"csrf": csrf, "agent": "scripted"})
        assert answer.status_code == 403
        assert "too old" in answer.text
    assert mine.http.post("/conversations", data={"agent": "scripted"}).status_code == 403
    body = f"csrf={mine.csrf}&agent=scripted"
    assert mine.http.post("/conversations", content=body, headers={"Content-Type": "text/plain"}).status_code == 403
    assert mine.http.post("/conversations", files={"agent": b"scripted"}, data={"csrf": mine.csrf}).status_code == 403
    assert world.value("SELECT count(*) FROM conversations") == 0
    nobody = Visitor(world)
    assert nobody.http.post("/conversations", data={"csrf": mine.csrf, "agent": "scripted"}).status_code == 401


def test_other_peoples_pages_are_not_there(world: World) -> None:
    """404 for other people's ids and for what is no id, on pages and posts."""
    run = world.turn("x")
    eve = world.add_owner("eve", role="owner")
    visitor = Visitor(world)
    assert visitor.http.get(world.login_link(eve)).status_code == 303
    assert run["thread_id"] not in visitor.page("/conversations")
    for path in (
        f"/conversations/{run['thread_id']}",
        f"/runs/{run['id']}",
        "/conversations/x",
        "/runs/..%2fx",
        "/nothing",
    ):
        visitor.page(path, 404)
    for path in (f"/conversations/{run['thread_id']}/messages", f"/conversations/{run['thread_id']}/close"):
        assert visitor.post(path, text="x").status_code == 404
    assert visitor.post(f"/runs/{run['id']}/cancel").status_code == 404
    visitor.page("/conversations?cursor=x", 400)


def test_the_language_is_the_owners(world: World) -> None:
    """A switch on every page; afterwards pages, states and error sentences are Chinese. It never leads elsewhere."""
    visitor = Visitor(world).sign_in(world)
    for back, to in (
        ("/conversations", "/conversations"),
        ("https://evil.example", "/conversations"),
        ("//evil.example", "/conversations"),
        ("/\\evil.example", "/conversations"),
        ("/conversations/x?before=y", "/conversations/x?before=y"),
    ):
        assert visitor.post("/language", language="zh", back=back).headers["location"] == to
    page = visitor.page("/conversations")
    assert '<html lang="zh">' in page
    assert "新建对话" in page
    assert visitor.post("/language", language="xx").status_code == 422


def test_agents_that_are_not_installed_are_shown_so(world: World) -> None:
    """An unavailable agent cannot be chosen; its install command is there."""
    definition = {"name": "ghost", "command": ["no-such-command"], "install_hint": "pip install ghost"}
    world.owner.good("PUT", "/v1/agents/ghost", definition)
    page = Visitor(world).sign_in(world).page("/conversations")
    listed = world.owner.good("GET", "/v1/agents/ghost")
    assert ('value="ghost"' in page) is listed["available"]
    assert ("pip install ghost" in page) is not listed["available"]


def test_static_files_and_nothing_else(world: World) -> None:
    """Only the pages' own files; kept for ever only by their version."""
    visitor = Visitor(world)
    page = Visitor(world).sign_in(world).page("/conversations")
    style = re.search(r'href="(/static/style.css\?v=[^"]+)"', page)
    assert style
    assert "immutable" in visitor.http.get(style.group(1)).headers["cache-control"]
    assert visitor.http.get("/static/style.css").headers["cache-control"] == "no-cache"
    assert visitor.http.get("/static/conversation.js").headers["content-type"].startswith("text/javascript")
    for name in ("..%2fapp.py", "app.py", "%2e%2e/app.py", "", "style.css%00", "x" * 300):
        assert visitor.http.get("/static/" + name).status_code == 404


def test_pages_load_nothing_from_elsewhere(world: World) -> None:
    """No other origin, no inline script and no inline style in anything that we serve."""
    visitor = Visitor(world).sign_in(world)
    run = world.turn("x", message="![p](https://evil.example/p.png) <img src=https://evil.example/q.png>")
    for path in ("/conversations", f"/conversations/{run['thread_id']}", f"/runs/{run['id']}"):
        page = visitor.page(path)
        assert not re.search(r'(src|action)="(https?:)?//', page)
        assert not re.search(r"<script(?![^>]* src=)", page)
        assert not re.search(r"<style| style=| on[a-z]+=", page)
        assert "<img src=https" not in page


def test_many_turns_are_paged(world: World) -> None:
    """The newest 20 turns, and a way to the earlier ones, where nothing is live."""
    thread_id = world.owner.conversation()["thread_id"]
    for n in range(25):
        world.owner.submit(thread_id, f"message {n}.")
    visitor = Visitor(world).sign_in(world)
    page = visitor.page(f"/conversations/{thread_id}")
    assert "message 24." in page
    assert "message 4." not in page
    earlier = re.search(r'href="(/conversations/[^"]+before=[^"]+)"', page)
    assert earlier
    page = visitor.page(earlier.group(1))
    assert "message 4." in page
    assert "message 5." not in page
    assert "conversation.js" not in page


def test_a_run_shows_another_attempt_only_where_it_left_something(world: World) -> None:
    """Proves: E-05. A claim that was given back is in the record, and is not shown as if something had run."""
    thread = world.owner.conversation()["thread_id"]
    run_id = world.owner.submit(thread, "hello")["run"]["id"]
    world.claim().ok("release", {"why": "not_created", "detail": ""})
    visitor = Visitor(world).sign_in(world)
    page = visitor.page(f"/runs/{run_id}")
    assert re.findall(r"<tr><td>(\d+)</td>", page) == ["1"]  # the only one
    turn = world.claim()
    page = visitor.page(f"/runs/{run_id}")
    assert re.findall(r"<tr><td>(\d+)</td>", page) == ["2"]
    turn.whole("hi")
    assert re.findall(r"<tr><td>(\d+)</td>", visitor.page(f"/runs/{run_id}")) == ["2"]
    attempts = world.owner.good("GET", f"/v1/runs/{run_id}")["attempts"]
    assert [(one["attempt_no"], one["left_events"]) for one in attempts] == [(1, False), (2, True)]


def test_a_failed_turn_says_what_is_known(world: World) -> None:
    """Proves: E-04, R-06. The reason, the stage, whether the message arrived, the agent's last words; and its tool calls."""
    visitor = Visitor(world).sign_in(world)
    thread_id = world.owner.conversation()["thread_id"]
    world.owner.submit(thread_id, "\n  build   the <site>\nplease")
    turn = world.claim()
    turn.prepare()
    turn.admit()
    turn.events(
        {"kind": "tool_call", "data": {"id": "t1", "title": "make", "kind": "execute", "status": "in_progress"}},
        {"kind": "tool_update", "data": {
            "id": "t1", "status": "failed", "content": [{"type": "content", "content": {"type": "text", "text": "no <rule>"}}]}},
    )  # fmt: skip
    failure = {
        "code": "agent_exited", "stage": "prompt", "delivered": "yes", "text": "it left", "stderr_tail": "Segmentation <fault>",
    }  # fmt: skip
    turn.ok("finish", {"status": "failed", "failure": failure})
    for path in (f"/conversations/{thread_id}", f"/runs/{turn.claim['job']}"):
        page = visitor.page(path)
        for text in (
            "it left",
            "<code>prompt</code>",
            "Your message: delivered",
            "Segmentation &lt;fault&gt;",
            "no &lt;rule&gt;",
        ):
            assert text in page, (path, text)
        assert "may or may not have reached" not in page
    assert "<h1>build the &lt;site&gt;</h1>" in visitor.page(f"/conversations/{thread_id}"), (
        "called by its first message"
    )


def test_a_lost_conversation_that_is_closed_still_says_so(world: World) -> None:
    """Proves: R-06. Closing takes nothing of what happened away."""
    visitor = Visitor(world).sign_in(world)
    thread_id = world.owner.conversation()["thread_id"]
    world.owner.submit(thread_id, "x")
    turn = world.claim()
    turn.prepare()
    turn.admit()
    turn.ok(
        "finish",
        {"status": "failed", "failure": {"code": "outcome_unknown", "stage": "prompt", "delivered": "unknown"}},
    )
    wait_until(lambda: world.owner.good("GET", f"/v1/conversations/{thread_id}")["state"] == "lost", "it is lost")
    visitor.page(f"/conversations/{thread_id}")
    assert visitor.post(f"/conversations/{thread_id}/close").status_code == 303
    page = visitor.page(f"/conversations/{thread_id}")
    assert "can no longer be used" in page
    assert "This conversation is closed." in page


def test_a_cancel_that_was_asked_for_is_no_error(world: World) -> None:
    """Said, and not in red."""
    visitor = Visitor(world).sign_in(world)
    thread_id = world.owner.conversation()["thread_id"]
    run = world.owner.submit(thread_id, "x")["run"]["id"]
    assert world.owner.http.post(f"/v1/runs/{run}/cancel").status_code == 200
    assert '<p class="note">The turn was cancelled.</p>' in visitor.page(f"/conversations/{thread_id}")
