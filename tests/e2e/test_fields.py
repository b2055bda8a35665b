"""Cases from the field, through the whole product: an agent that leaves, bytes that hurt, big numbers, names as paths."""

import json
import threading
import urllib.request
from pathlib import Path

import pytest

from e2e.harness import Product, wait_for
from turnkeeper.client.failures import ClientError
from turnkeeper.kit.ids import digest, new_id, new_secret
from turnkeeper.wire.public import NewConversation, Submitted
from turnkeeper.wire.turn import EventKind

pytestmark = pytest.mark.timeout(180)


# ---- F07 ----

LEAVES = (
    # how, error code, whether the prompt was delivered, whether the conversation is over
    ("initialize:exit1", "agent_start_failed", False, False),
    ("new:exit0", "agent_start_failed", False, False),
    ("prompt:segv", "agent_exited", True, True),
    ("prompt:close-stdout", "agent_exited", True, True),
)


@pytest.mark.parametrize(("fault", "code", "delivered", "lost"), LEAVES, ids=[cell[0] for cell in LEAVES])
def test_an_agent_that_leaves_is_told_with_its_stage(
    fault: str, code: str, delivered: bool, lost: bool, product: Product
) -> None:
    """The stage is named, stderr's last lines are kept, and what is said of the delivery is right. Case: F07."""
    agent = product.agent(
        f"leaves-{fault.replace(':', '-')}",
        env={"SCRIPTED_AGENT_FAULT": fault, "SCRIPTED_AGENT_STDERR": "the last words"},
    )
    thread = product.conversation(agent)
    done = product.turn(thread, "/say hello")
    assert (done.run.status, done.run.error_code) == ("failed", code), f"{done.run}\n{product.tell()}"
    detail = done.run.error_detail or {}
    assert detail.get("stage"), detail
    assert detail.get("delivered") == ("yes" if delivered else "no"), detail
    assert "the last words" in str(detail.get("stderr_tail")), detail
    assert len(product.ledger(agent)) == (1 if delivered else 0)
    state = wait_for(lambda: product.client.conversation(thread), "the conversation is there").state
    if lost:
        wait_for(lambda: product.client.conversation(thread).state == "lost", "the conversation is lost")
    else:
        assert state == "open"


def test_an_agent_that_is_not_there_is_a_clear_refusal(product: Product) -> None:
    """Shown as unavailable with the command that installs it; a run on it ends with a clear code."""
    agent = product.agent("missing", command=["/opt/nowhere/agent"], install_hint="apt-get install nowhere")
    shown = next(one for one in product.client.agents() if one.name == agent)
    assert (shown.available, shown.install) == (False, "apt-get install nowhere")
    assert "/opt/nowhere/agent" in (shown.unavailable or "")
    try:
        thread = product.conversation(agent)
        done = product.turn(thread, "hello")
    except ClientError as error:
        assert error.code == "agent_unavailable"  # noqa: PT017 - either way of saying no is right
    else:
        assert (done.run.status, done.run.error_code) == ("failed", "agent_start_failed"), done.run


# ---- F08 ----


def test_one_key_sent_twenty_times_is_one_message(product: Product) -> None:
    """At once, again after the end, and with another text (422). Case: F08."""
    agent = product.agent("twice")
    thread = product.conversation(agent)
    key, ids = new_id(), list[str]()

    def send() -> None:
        ids.append(_post(product, thread, "/say once", key).run.id)

    threads = [threading.Thread(target=send) for _ in range(20)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(30)
    assert len(ids) == 20
    assert len(set(ids)) == 1
    assert product.follow(ids[0]).run.status == "completed"
    assert _post(product, thread, "/say once", key).run.id == ids[0]
    assert [entry.text for entry in product.ledger(agent)] == ["/say once"]
    with pytest.raises(ClientError) as caught:
        _post(product, thread, "/say twice", key)
    assert (caught.value.status, caught.value.code) == (422, "idempotency_mismatch")
    assert len(product.client.runs(50, thread)) == 1


def _post(product: Product, thread: str, text: str, key: str) -> Submitted:
    return product.client.submit(thread, text, idempotency_key=key)


# ---- F10 ----


def test_bytes_that_hurt_never_stop_a_settlement(product: Product) -> None:
    """NUL, a lone surrogate, broken UTF-8, an emoji in two writes: in text, in names of files, in the error. Case: F10."""
    agent = product.agent("bytes")
    thread = product.conversation(agent, "bytes")
    emoji, escaped_nul, lone_surrogate = "😀".encode(), rb"a\u0000b", rb"a\ud800b"
    lines = [
        "/bytes 610062",
        f"/bytes {escaped_nul.hex()}",
        f"/bytes {lone_surrogate.hex()}",
        "/bytes 61ff62",
        f"/bytes {emoji[:2].hex()} | {emoji[2:].hex()}",
        r"/run printf x > \"$(printf 'n\377ame')\"; printf 'a\000b\377c'",
        "/say grüße 世界 😀",
    ]
    done = product.completed(thread, "\n".join(lines))
    assert "grüße 世界 😀" in done.text
    assert "\x00" not in done.text
    assert "\ufffd" in done.text
    assert done.text.count("😀") == 2
    failed = product.turn(thread, f"/fail-bytes {(escaped_nul + lone_surrogate).hex()}ff")
    assert failed.run.status == "failed"
    # lists, pages and events work
    assert {run.id for run in product.client.runs(50, thread)} == {done.run.id, failed.run.id}
    assert list(product.client.run_events(failed.run.id))[-1].kind is EventKind.END
    assert _page(product, f"/conversations/{thread}")
    assert product.client.conversation(thread).state == "open"


def _page(product: Product, path: str) -> str:
    """A page as a browser with a one-time link's session sees it."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with opener.open(_fresh_link(product), timeout=20) as answer:
        answer.read()
    with opener.open(f"{product.url}{path}", timeout=20) as answer:
        assert answer.status == 200
        return answer.read().decode()


def _fresh_link(product: Product) -> str:
    secret = new_secret("tk_")
    product.rows(
        "INSERT INTO web_sessions (id, uid, kind, secret_hash, expires_at) "
        "VALUES (%s, %s, 'link', %s, clock_timestamp() + interval '1 hour') RETURNING id",
        new_id(), product.uid, digest(secret),
    )  # fmt: skip
    return f"{product.url}/login?token={secret}"


# ---- F13 ----


def test_numbers_above_two_to_the_31st(product: Product) -> None:
    """Every sequence and counter set to 2147483646; ten turns later all is well, in the pages too. Case: F13."""
    big = 2147483646
    agent = product.agent("big")
    thread = product.conversation(agent)
    product.completed(thread, "first")
    product.rows("SELECT setval('lease_generations', %s), setval('queue_positions', %s)", big, big)
    product.rows("UPDATE event_counters SET last_seq = %s WHERE thread_id = %s RETURNING 1", big, thread)
    product.rows("UPDATE shared_workspaces SET epoch = %s WHERE runtime_scope_id = %s RETURNING 1", big, thread)
    product.rows("UPDATE memberships SET fence = %s WHERE thread_id = %s RETURNING 1", big, thread)
    for number in range(2, 12):
        done = product.completed(thread, f"number {number}")
        assert f"turn {number}, remembering {number - 1} earlier turns" in done.text
        assert done.run.epoch == big + number - 1
        sequence = [
            event.seq for event in done.events if event.kind is not EventKind.SNAPSHOT and event.seq is not None
        ]
        assert sequence[0] > big
        assert sequence == sorted(sequence)
    assert product.client.runs(1, thread)[0].epoch == big + 10
    assert min(one["lease_generation"] for one in _generations(product, thread)[1:]) > big
    page = _page(product, f"/conversations/{thread}")
    assert "number 11" in page


def _generations(product: Product, thread: str) -> list[dict[str, int]]:
    return product.rows(
        "SELECT a.lease_generation FROM attempts a JOIN runs r ON r.id = a.run_id WHERE thread_id = %s ORDER BY 1",
        thread,
    )


# ---- F14 ----

NO_WORKDIRS = (
    "..", "/etc", "a/../../b", "~", "~root/x", "%2e%2e", "x\x00y", "agents", "agents/homes", "n" * 300, "", ".", "a//../..",
)  # fmt: skip
WORKDIRS = ("v2..v3", "x;touch y", "$(touch z)", "a b")


@pytest.mark.parametrize("workdir", NO_WORKDIRS)
def test_a_name_that_is_no_workdir_is_refused_with_the_field(workdir: str, product: Product) -> None:
    """Nothing outside the root is touched. Case: F14."""
    agent = product.agent("names")
    with pytest.raises(ClientError) as caught:
        product.client.create_conversation(NewConversation(agent=agent, workdir=workdir), idempotency_key=new_id())
    assert caught.value.status == 422
    assert "workdir" in (caught.value.detail or "").lower(), caught.value.detail


@pytest.mark.parametrize("workdir", WORKDIRS)
def test_a_name_that_only_looks_dangerous_is_a_plain_directory(workdir: str, product: Product) -> None:
    """No shell sees it, and it is not decoded. Case: F14."""
    agent = product.agent("names")
    root = product.data.root / "owners"
    thread = product.conversation(agent, workdir)
    product.completed(thread, "/write here.txt here")
    assert (product.workspace / workdir / "here.txt").read_text() == "here\n"
    assert sorted(entry.name for entry in root.iterdir()) == [product.uid]
    assert not [name for name in ("y", "z") if (product.workspace / name).exists() or Path(name).exists()]


def test_a_row_edited_by_hand_does_not_lead_outside(product: Product) -> None:
    """A Workdir that leads out of the workspace ends the run before any sandbox is asked to use it. Case: F14."""
    agent = product.agent("edited")
    thread = product.conversation(agent, "edited")
    product.rows("UPDATE conversations SET workdir = '../../../outside' WHERE thread_id = %s RETURNING 1", thread)
    done = product.turn(thread, "/write x.txt x")
    assert done.run.status == "failed", done.run
    assert done.run.error_code in ("preparation_failed", "invalid_runtime_scope", "sandbox_unavailable"), done.run
    assert not list(product.root.rglob("outside"))
    assert not product.ledger(agent)


def test_a_link_in_the_way_is_not_followed(product: Product) -> None:
    """An agent's own link from its workspace to elsewhere is no Workdir of another conversation. Case: F14, K-09."""
    agent = product.agent("links")
    first = product.conversation(agent, "links/first")
    product.completed(first, "/run ln -s /etc ../way")
    assert (product.workspace / "links/way").readlink() == Path("/etc")
    done = product.turn(product.conversation(agent, "links/way"), "/write x.txt x")
    assert done.run.status == "failed", done.run
    assert not (Path("/etc") / "x.txt").exists()


# ---- F15 ----


def test_agents_and_workers_hold_their_own_descriptors_only(product: Product) -> None:
    """Of the whole product's files, sockets and logs: stdio, one descriptor for a worker, none for an agent. Case: F15."""
    agent = product.agent("fds")
    thread = product.conversation(agent, "fds")
    run_id, go = product.hold(thread, "fds")
    child = product.child(run_id)
    tools, agents = product.tools_running(thread), product.agents_running(thread)
    assert tools
    assert agents
    for process in (*tools, *agents):
        links = _descriptors(process.pid)
        assert not [link for link in links.values() if str(product.data.root) in link], links
        assert set(links) <= {0, 1, 2} or process in agents, links
    names = _descriptors(child.pid)
    ours = {fd: link for fd, link in names.items() if str(product.data.root) in link and fd > 2}
    assert not ours, ours
    go.touch()
    assert product.wait_status(run_id).status == "completed"


def _descriptors(pid: int) -> dict[int, str]:
    found: dict[int, str] = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found[int(entry.name)] = str(entry.readlink())
        except OSError:  # closed meanwhile
            continue
    return found


def test_secrets_reach_the_agent_and_nothing_else(tmp_path: Path) -> None:
    """The named one is in the agent's environment; no log, list of processes, mount or row holds a secret. Proves: K-11."""
    file = tmp_path / "secrets"
    file.write_text("MODEL_KEY=sk-for-the-agent\nOTHER_KEY=sk-for-nobody\n")
    file.chmod(0o600)
    with Product({"TURNKEEPER_SECRETS_FILE": str(file)}) as product:
        agent = product.agent("secrets", secrets=["MODEL_KEY"])
        thread = product.conversation(agent, "secrets")
        done = product.completed(
            thread, "/run env | cut -c1-12 | sort; ls -a / /workspace/.. ; cat /proc/1/environ | tr '\\0' '\\n'"
        )
        output = json.dumps([event.data for event in done.events])
        assert "MODEL_KEY=sk" in output
        assert "OTHER_KEY" not in output
        assert "DATABASE_URL" not in output
        run_id, go = product.hold(thread, "secrets")
        ours = [
            path.read_text().strip() for path in product.data.keys.iterdir() if path.name != "control-signing.pub.json"
        ]
        for process in (
            *product.agents_running(thread),
            *product.tools_running(thread),
            product.sandboxes()[thread][1],
        ):
            environ = Path(f"/proc/{process.pid}/environ").read_bytes()
            assert b"sk-for-nobody" not in environ
            assert not [key for key in ours if key.encode() in environ]
            mounts = Path(f"/proc/{process.pid}/mountinfo").read_text()
            assert str(product.data.keys) not in mounts
            assert "/run/pg" not in mounts
        for everyone in Path("/proc").iterdir():
            if everyone.name.isdigit():
                try:
                    words = (everyone / "cmdline").read_bytes()
                except OSError:
                    continue
                assert b"sk-for-the-agent" not in words
                assert not [key for key in ours if key.encode() in words]
        go.touch()
        product.wait_status(run_id)
        dump = json.dumps(product.rows("SELECT to_jsonb(agents) AS row FROM agents"), default=str)
        dump += json.dumps(product.rows("SELECT to_jsonb(runs) AS row FROM runs"), default=str)
        assert "sk-for" not in dump
        for log in [*product.data.logs.iterdir(), *product.data.sandboxes.glob("*/*.log")]:
            text = log.read_text(errors="replace")
            assert "sk-for" not in text, log
            assert not [key for key in ours if key in text], log
