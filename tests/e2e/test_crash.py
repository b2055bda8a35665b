"""Each part is killed in the middle of a turn, by SIGKILL. What may live on goes on; what may not ends with a clear code.

Judged by the ledger: no prompt ever reaches the agent twice, whatever died (R-03).
"""

import signal
import time
from collections.abc import Generator

import pytest

from e2e.harness import GRACE_S, HELD, LEASE_S, ROUND_S, SHORT_LEASE, Product, wait_for
from turnkeeper.client.failures import CallError, ClientError
from turnkeeper.kit.procs import is_alive, kill

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module", name="product")
def _product() -> Generator[Product]:
    with Product() as running:
        yield running


@pytest.fixture(scope="module", name="hasty")
def _hasty() -> Generator[Product]:
    """With a short lease, for what only a lease can end."""
    with Product(SHORT_LEASE) as running:
        yield running


def delivered_once(product: Product, agent: str) -> None:
    """One prompt has arrived, once."""
    assert [entry.text for entry in product.ledger(agent)] == [f"/run {HELD}"]


@pytest.mark.parametrize("name", ["control", "provisioner", "host"])
def test_a_process_that_is_killed_comes_back_and_the_turn_completes(name: str, product: Product) -> None:
    """The worker waits for the control plane, re-reads the stream by its numbers, and is adopted by the next host.

    Proves: H-04, R-03, R-07.
    """
    agent = product.agent(f"kill-{name}")
    thread = product.conversation(agent, f"kill/{name}")
    run_id, go = product.hold(thread, f"kill/{name}")
    child, victim = product.child(run_id), product.process(name)
    assert kill(victim, signal.SIGKILL)
    assert wait_for(lambda: product.process(name) != victim, f"another {name} runs")
    assert is_alive(child)
    go.touch()
    run = product.wait_status(run_id, timeout_s=60)
    assert (run.status, run.error_code) == ("completed", None), f"{run}\n{product.tell()}"
    delivered_once(product, agent)
    events = product.client.run_events(run_id)
    assert "let go" in "".join(str(event.data) for event in events)
    assert "turn 2, remembering 1 earlier turns" in product.completed(thread, "and on").text
    assert [one["outcome"] for one in product.rows("SELECT outcome FROM attempts WHERE run_id = %s", run_id)] == [
        "completed"
    ]


def test_a_database_that_is_killed_comes_back_and_the_turn_completes(product: Product) -> None:
    """PostgreSQL recovers; nothing that was confirmed is lost. Proves: D-04, R-03."""
    agent = product.agent("kill-postgres")
    thread = product.conversation(agent, "kill/postgres")
    run_id, go = product.hold(thread, "kill/postgres")
    victim = product.postmaster()
    assert kill(victim, signal.SIGKILL)
    wait_for(lambda: _another_postmaster(product, victim), "another PostgreSQL runs", 60)
    go.touch()
    run = wait_for(lambda: _ended(product, run_id), "the run ends", 90)
    assert (run.status, run.error_code) == ("completed", None), f"{run}\n{product.tell()}"
    delivered_once(product, agent)
    assert "turn 2, remembering 1 earlier turns" in product.completed(thread, "and on").text


def _another_postmaster(product: Product, victim: object) -> bool:
    try:
        return product.postmaster() != victim
    except (OSError, AssertionError, ValueError, IndexError):
        return False


def _ended(product: Product, run_id: str) -> object:
    try:
        run = product.client.run(run_id)
    except CallError:  # the database is away
        return None
    return run if run.ended_at else None


def test_an_agent_that_is_killed_ends_the_turn_and_says_so(product: Product) -> None:
    """Delivered, outcome unknown: the conversation is over, another one of the same Workdir may follow. Proves: R-03."""
    agent = product.agent("kill-agent")
    thread = product.conversation(agent, "kill/agent")
    run_id, _ = product.hold(thread, "kill/agent")
    tools = product.tools_running(thread)
    victims = product.agents_running(thread)
    assert len(victims) == 1
    kill(victims[0], signal.SIGKILL)
    run = product.wait_status(run_id, timeout_s=60)
    assert (run.status, run.error_code) == ("failed", "agent_exited"), f"{run}\n{product.tell()}"
    assert (run.error_detail or {}).get("delivered") == "yes"
    wait_for(lambda: not any(map(is_alive, tools)), "what the agent started is dead")
    delivered_once(product, agent)
    wait_for(lambda: product.client.conversation(thread).state == "lost", "the conversation is lost")


@pytest.mark.parametrize("part", ["launcher", "sandboxd"])
def test_a_sandbox_that_is_killed_ends_the_turn_and_frees_the_workdir(part: str, product: Product) -> None:
    """Its receipts are gone with it: whatever was delivered counts as unknown. Proves: F-07, R-02, R-03, D-02."""
    agent = product.agent(f"kill-{part}")
    thread = product.conversation(agent, f"kill/{part}")
    run_id, _ = product.hold(thread, f"kill/{part}")
    pair = product.sandboxes()[thread]
    kill(pair[0] if part == "launcher" else pair[1], signal.SIGKILL)
    run = product.wait_status(run_id, timeout_s=60)
    assert run.status == "failed", f"{run}\n{product.tell()}"
    assert run.error_code in ("outcome_unknown", "sandbox_unavailable", "agent_exited"), run
    delivered_once(product, agent)
    wait_for(lambda: product.client.conversation(thread).state == "lost", "the conversation is lost")
    wait_for(lambda: not any(map(is_alive, pair)), "nothing of the sandbox is left")
    # the cleanup confirms it, and the Workdir is free for another conversation
    other = wait_for(lambda: _try_conversation(product, agent, f"kill/{part}"), "the Workdir is free", 60)
    assert "turn 1, remembering 0 earlier turns" in product.completed(other, "new").text


def _try_conversation(product: Product, agent: str, workdir: str) -> str | None:
    try:
        return product.conversation(agent, workdir)
    except ClientError as error:
        if error.code != "workdir_held":
            raise
        return None


def test_a_worker_that_is_killed_loses_the_turn_and_never_repeats_it(hasty: Product) -> None:
    """Its host finds it gone, or its lease ends; the agent is stopped; the code is clear. Proves: H-04, L-12, R-02, R-06."""
    agent = hasty.agent("kill-child")
    thread = hasty.conversation(agent, "kill/child")
    run_id, _ = hasty.hold(thread, "kill/child")
    tools = hasty.tools_running(thread)
    assert tools
    killed_at = time.monotonic()
    assert kill(hasty.child(run_id), signal.SIGKILL)
    run = hasty.wait_status(run_id, timeout_s=LEASE_S + GRACE_S + ROUND_S + 15)
    assert (run.status, run.error_code) == ("failed", "outcome_unknown"), f"{run}\n{hasty.tell()}"
    wait_for(lambda: not any(map(is_alive, tools)), "what the agent started is dead", LEASE_S + 20)
    assert time.monotonic() - killed_at < LEASE_S + GRACE_S + ROUND_S + 25
    delivered_once(hasty, agent)
    assert hasty.client.conversation(thread).state == "lost"
    assert [one["outcome"] for one in hasty.rows("SELECT outcome FROM attempts WHERE run_id = %s", run_id)] != [
        "completed"
    ]


def test_a_worker_that_is_killed_before_admission_costs_nothing_but_the_turn(hasty: Product) -> None:
    """In a setup command: the message never reached the agent, which is said, and the conversation goes on.

    Proves: R-01, R-05, D-03, A-05.
    """
    setup = "touch /workspace/setup-begun; [ -e /workspace/setup-go ] || sleep 60"
    agent = hasty.agent("kill-early", setup=[["/bin/sh", "-c", setup]])
    thread = hasty.conversation(agent, "kill/early")
    run_id = hasty.submit(thread, "/say never delivered")
    wait_for((hasty.workspace / "setup-begun").exists, "the setup command runs")
    assert kill(hasty.child(run_id), signal.SIGKILL)
    run = hasty.wait_status(run_id, timeout_s=LEASE_S + GRACE_S + ROUND_S + 15)
    assert (run.status, run.error_code) == ("failed", "worker_lease_expired"), f"{run}\n{hasty.tell()}"
    (hasty.workspace / "setup-go").touch()
    done = hasty.completed(thread, "and on")
    assert "turn 1, remembering 0 earlier turns" in done.text
    assert [entry.text for entry in hasty.ledger(agent)] == ["and on"]
    rows = hasty.rows("SELECT delivery FROM messages WHERE thread_id = %s AND role = 'owner' ORDER BY id", thread)
    assert [row["delivery"] for row in rows] == ["not_delivered", "delivered"]


def test_an_agent_that_takes_too_long_is_stopped_with_its_own_code(product: Product) -> None:
    """Neither a cancel nor a lease end: the execution timeout. It acknowledges, so the conversation goes on. Proves: E-06."""
    agent = product.agent("slow", execution_timeout_s=2)
    thread = product.conversation(agent, "slow")
    done = product.turn(thread, "/sleep 100")
    assert (done.run.status, done.run.error_code) == ("failed", "execution_timeout"), f"{done.run}\n{product.tell()}"
    assert "turn 2, remembering 1 earlier turns" in product.completed(thread, "and on").text


def test_a_worker_that_hangs_loses_its_lease_and_may_not_write_any_more(hasty: Product) -> None:
    """Stopped by SIGSTOP beyond its lease, then continued: its late words change nothing. Proves: L-05, L-06, L-12."""
    agent = hasty.agent("stop-child")
    thread = hasty.conversation(agent, "stop/child")
    run_id, go = hasty.hold(thread, "stop/child")
    child, tools = hasty.child(run_id), hasty.tools_running(thread)
    kill(child, signal.SIGSTOP)
    try:
        run = hasty.wait_status(run_id, timeout_s=LEASE_S + GRACE_S + ROUND_S + 15)
        assert (run.status, run.error_code) == ("failed", "outcome_unknown"), f"{run}\n{hasty.tell()}"
        wait_for(lambda: not any(map(is_alive, tools)), "the sandbox has stopped the turn by itself", LEASE_S + 20)
    finally:
        kill(child, signal.SIGCONT)
    go.touch()
    wait_for(lambda: not is_alive(child), "the worker ends when it sees its lease gone")
    after = hasty.client.run(run_id)
    assert (after.status, after.error_code, after.ended_at) == (run.status, run.error_code, run.ended_at)
    delivered_once(hasty, agent)


def test_cancel_during_a_tool_ends_the_tool_and_keeps_the_conversation(product: Product) -> None:
    """The agent acknowledges; the tool is dead; the next message continues the session. Proves: L-10, R-07."""
    agent = product.agent("cancel")
    thread = product.conversation(agent, "cancel")
    run_id, _ = product.hold(thread, "cancel")
    tools = product.tools_running(thread)
    product.client.cancel(run_id)
    run = product.wait_status(run_id, timeout_s=60)
    assert run.status == "cancelled", f"{run}\n{product.tell()}"
    wait_for(lambda: not any(map(is_alive, tools)), "the tool is dead")
    done = product.completed(thread, "and on")
    assert "turn 2, remembering 1 earlier turns" in done.text
    assert done.of_session() == "continued"
    # asking again, and of a run that has ended, changes nothing
    assert product.client.cancel(run_id).status == "cancelled"
    assert product.client.cancel(done.run.id).status == "completed"


def test_cancel_of_an_agent_that_never_answers_ends_it_by_force(product: Product) -> None:
    """After the grace the agent is killed, which costs the conversation. Proves: L-10."""
    agent = product.agent("deaf")
    thread = product.conversation(agent, "deaf")
    run_id = product.submit(thread, "/hang")
    wait_for(lambda: product.ledger(agent), "the prompt has arrived")
    product.client.cancel(run_id)
    run = product.wait_status(run_id, timeout_s=60)
    assert run.status in ("cancelled", "failed"), run
    wait_for(lambda: product.client.conversation(thread).state == "lost", "the conversation is lost")


def test_a_waiting_message_is_cancelled_without_ever_being_delivered(product: Product) -> None:
    """And the one before it is not disturbed. Proves: A-05, D-01."""
    agent = product.agent("waiting")
    thread = product.conversation(agent, "waiting")
    run_id, go = product.hold(thread, "waiting")
    waiting = product.submit(thread, "/say never")
    assert product.client.cancel(waiting).status == "cancelled"
    go.touch()
    assert product.wait_status(run_id).status == "completed"
    delivered_once(product, agent)
    deliveries = product.rows("SELECT delivery FROM messages WHERE run_id = %s AND role = 'owner'", waiting)
    assert deliveries == [{"delivery": "not_delivered"}]
