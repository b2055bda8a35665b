"""The pages in a real browser: what a person sees while a turn goes on."""

from pathlib import Path

import pytest

from api.world import World
from web.chromium import Browser

pytestmark = pytest.mark.browser

ARTICLES = "document.querySelectorAll('article.turn')"


def test_a_turn_is_seen_live(world: World, browser: Browser, tmp_path: Path) -> None:
    """Sign in, start a conversation, send, read along, see the end with its changes, send again, cancel: no reload by hand."""
    browser.open(world.url + world.login_link())
    assert browser.run("location.pathname") == "/conversations"
    assert browser.run("document.cookie") == ""  # http-only
    browser.fill("input[name=title]", "Browser task")
    browser.click("section.card button.main")
    browser.wait("location.pathname.startsWith('/conversations/')")
    browser.wait("document.querySelector('[data-connection]')?.textContent === 'live'")

    browser.fill("#text", "do it, please\nin two lines")
    browser.click("[data-send] button.main")
    browser.wait(f"{ARTICLES}.length === 1")
    assert browser.run("document.querySelector('#text').value") == ""
    turn = world.claim()
    browser.wait("document.querySelector('[data-state]').textContent === 'working'")
    assert turn.prepare()["prompt"] == "do it, please\nin two lines"
    turn.admit()
    turn.texts("Hello ", "**wor")
    browser.wait("document.querySelector('[data-live]').textContent === 'Hello **wor'")
    turn.events(
        {"kind": "thought", "data": {"text": "hm"}},
        {"kind": "tool_call", "data": {"id": "t1", "title": "<img src=x onerror=alert(1)>", "status": "in_progress"}},
        {"kind": "tool_update", "data": {"id": "t1", "status": "completed"}},
        {"kind": "text", "data": {"text": "ld**"}},
    )
    browser.wait("document.querySelector('[data-live]').textContent === 'Hello **world**'")
    assert browser.run("document.querySelector('[data-activity] li').dataset.status") == "completed"
    assert browser.run("document.querySelector('[data-activity] img')") is None
    browser.screenshot(tmp_path / "live.png")
    turn.settle("Hello **world**")
    changes = {"files": [{"path": "a.txt", "status": "added", "added_lines": 1, "diff": "+x"}], "added_lines": 1}
    turn.finish(snapshot={"tree_id": "a" * 40, "changes": changes})
    browser.wait("document.querySelector('article.turn .rich strong')?.textContent === 'world'")
    assert "Changed files: 1" in browser.text("article.turn")
    assert browser.run(f"{ARTICLES}.length") == 1
    assert "turn 1" in browser.text("#head")

    browser.fill("#text", "second")
    browser.click("[data-send] button.main")
    browser.wait(f"{ARTICLES}.length === 2")
    browser.click("article.turn:last-child [data-cancel] button")
    browser.wait("document.querySelector('article.turn:last-child [data-state]').textContent === 'cancelled'")
    assert "The turn was cancelled." in browser.text("article.turn:last-child")
    assert browser.problems == []


def test_a_turn_that_goes_on_elsewhere_is_seen(world: World, browser: Browser) -> None:
    """A page that is opened in the middle of a turn shows all of it; messages from elsewhere appear; a cut line is mended."""
    thread_id = world.owner.conversation(title="T")["thread_id"]
    world.owner.submit(thread_id, "first")
    turn = world.claim()
    turn.prepare()
    turn.admit()
    turn.texts("early ")
    browser.open(world.url + world.login_link())
    browser.open(f"{world.url}/conversations/{thread_id}")
    browser.wait("document.querySelector('[data-live]')?.textContent === 'early '")
    browser.run("document.querySelector('#text').value = 'half-written'")
    world.owner.submit(thread_id, "from elsewhere")
    browser.wait(f"{ARTICLES}.length === 2")
    browser.offline(True)
    turn.texts("while offline ")
    turn.settle("final")
    turn.finish()
    browser.offline(False)
    browser.wait("document.querySelector('article.turn .rich')?.textContent.trim() === 'final'")
    assert browser.run("document.querySelector('#text').value") == "half-written"


def test_a_turn_that_works_before_its_card_is_there(world: World, browser: Browser) -> None:
    """The stream may be faster than the page that brings the card: state and text that came before are not lost."""
    thread_id = world.owner.conversation(title="T")["thread_id"]
    browser.open(world.url + world.login_link())
    browser.open(f"{world.url}/conversations/{thread_id}")
    browser.wait("document.querySelector('[data-connection]')?.textContent === 'live'")
    # The page is fetched, and its answer held back: what happens meanwhile comes by the stream alone.
    browser.run(
        "{ const real = window.fetch; window.held = 0; window.fetch = async (...all) => { const answer = await real(...all); "
        "window.held += 1; while (!window.go) await new Promise((done) => setTimeout(done, 10)); return answer; }; }"
    )
    world.owner.submit(thread_id, "first")
    browser.wait("window.held === 1")
    turn = world.claim()
    turn.prepare()
    turn.admit()
    turn.texts("early")
    browser.run("window.go = true")
    browser.wait("document.querySelector('[data-live]')?.textContent === 'early'")
    browser.wait("document.querySelector('[data-state]').textContent === 'working'")
    turn.settle("final")
    turn.finish()
    browser.wait("document.querySelector('article.turn .rich')?.textContent.trim() === 'final'")
    assert browser.problems == []


def test_a_lost_conversation_says_so(world: World, browser: Browser) -> None:
    """Proves: R-06. The reply was interrupted and the conversation can no longer be used, in the owner's language."""
    world.owner.http.patch("/v1/me", json={"language": "zh"})
    thread_id = world.owner.conversation()["thread_id"]
    world.owner.submit(thread_id, "x")
    turn = world.claim()
    turn.prepare()
    turn.admit()
    browser.open(world.url + world.login_link())
    browser.open(f"{world.url}/conversations/{thread_id}")
    browser.wait("document.querySelector('[data-connection]')?.textContent === '实时'")
    failure = {"code": "outcome_unknown", "stage": "prompt", "delivered": "yes"}
    turn.ok("finish", {"status": "failed", "failure": failure})
    browser.wait("!!document.querySelector('article.turn[data-final]')")
    browser.wait("document.body.innerText.includes('无法继续使用')")
    assert browser.text("[data-connection]") == "实时"
    assert browser.run("document.querySelector('#text')") is None
    assert browser.run("document.documentElement.lang") == "zh"


def test_the_policy_blocks_what_should_not_be_there(world: World, browser: Browser) -> None:
    """Inline script, remote pictures and frames do nothing even if markup of an agent's ever got through."""
    browser.open(world.url + world.login_link())
    browser.run(
        "(() => { const p = document.createElement('div'); p.innerHTML = '<img src=http://127.0.0.1:1/x.png>'; "
        "document.body.append(p); const s = document.createElement('script'); s.textContent = 'window.hacked = 1'; "
        "document.body.append(s); })()"
    )
    assert browser.run("window.hacked") is None
    assert browser.run("fetch('http://127.0.0.1:1/').then(() => 'sent', () => 'blocked')") == "blocked"
    browser.run("1")
    assert any("Content Security Policy" in one for one in browser.problems), browser.problems


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_pages_fit_a_phone_and_a_desktop(world: World, browser: Browser, width: int, dark: bool) -> None:
    """Nothing is wider than the window, everything that is clicked is big enough, and fields have labels."""
    thread_id = world.owner.conversation(title="A title that is long enough to need more than one line on a phone")[
        "thread_id"
    ]
    message = (
        "# H\n\n`"
        + "x" * 200
        + "`\n\n```\n"
        + "y" * 300
        + "\n```\n\n|a|b|c|\n|-|-|-|\n|"
        + "|".join("z" * 90 for _ in range(3))
        + "|"
    )
    world.turn("x", thread_id=thread_id, message=message)
    browser.resize(width, 800, dark=dark)
    browser.open(world.url + world.login_link())
    for path in ("/conversations", f"/conversations/{thread_id}"):
        browser.open(world.url + path)
        assert browser.run("document.documentElement.scrollWidth <= window.innerWidth"), path
        unlabelled = browser.run(
            "[...document.querySelectorAll('input:not([type=hidden]), textarea, button')]"
            ".filter(e => !(e.labels?.length || e.textContent.trim() || e.ariaLabel)).map(e => e.outerHTML)"
        )
        assert unlabelled == []
        small = browser.run(
            "[...document.querySelectorAll('button')].filter(e => e.offsetHeight && e.offsetHeight < 32).map(e => e.outerHTML)"
        )
        assert small == []


def test_sending_survives_a_lost_answer(world: World, browser: Browser) -> None:
    """The connection breaks while a message is sent: sending it again says it once."""
    thread_id = world.owner.conversation()["thread_id"]
    browser.open(world.url + world.login_link())
    browser.open(f"{world.url}/conversations/{thread_id}")
    browser.fill("#text", "only once")
    browser.run(
        "window.realFetch = fetch; window.fetch = (...a) => realFetch(...a).then(() => { throw new Error('lost'); })"
    )
    browser.click("[data-send] button.main")
    browser.wait("!document.querySelector('[data-problem]').hidden")
    assert browser.run("document.querySelector('#text').value") == "only once"
    browser.run("window.fetch = realFetch")
    browser.click("[data-send] button.main")
    browser.wait(f"{ARTICLES}.length === 1")
    browser.wait("document.querySelector('#text').value === ''")
    assert world.value("SELECT count(*) FROM runs") == 1
