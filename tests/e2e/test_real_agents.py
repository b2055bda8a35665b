"""Real coding agents through the whole product: in the sandbox, by the protocol, as any other agent.

The model is scripted, on loopback, which the sandbox sees because a real agent's definition asks for the host's network.
Skipped, with the reason, where an agent is not installed: `make test-agents` installs those that can be.
"""

import signal
from collections.abc import Generator

import pytest

from e2e.agents.install import Missing
from e2e.agents.real_agent import NAMES, RealAgent, real_agent
from e2e.harness import Product, wait_for
from e2e.model_server import ModelServer, model_server
from turnkeeper.kit.procs import kill
from turnkeeper.wire.turn import EventKind

pytestmark = [pytest.mark.agents, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def model() -> Generator[ModelServer]:
    """The model of this module's agents."""
    with model_server() as server:
        yield server


@pytest.fixture(params=NAMES)
def agent(request: pytest.FixtureRequest, model: ModelServer, product: Product) -> RealAgent:
    """Each real agent that is installed here, as the product knows it."""
    found = real_agent(request.param, model.url)
    if isinstance(found, Missing):
        pytest.skip(found.why)
    shown = product.client.put_agent(found.name, found.definition())
    assert shown.available, shown.unavailable
    return found


def test_streams_runs_a_command_and_continues_its_session(
    agent: RealAgent, product: Product, model: ModelServer
) -> None:
    """Text in chunks, a shell command that writes into the Workdir, a second turn in the retained session.

    Proves: D-03, D-08, R-07.
    """
    workdir = f"{agent.name}/first"
    thread = product.conversation(agent.name, workdir)
    streamed = product.completed(thread, "MODEL stream 5 0.05")
    assert "c1 c2 c3 c4 c5" in streamed.text
    assert len(streamed.of(EventKind.TEXT)) >= 2
    assert streamed.of_session() == "new"

    ran = product.completed(thread, "MODEL run echo written by a tool > proof.txt && pwd")
    assert (product.workspace / workdir / "proof.txt").read_text() == "written by a tool\n"
    assert ran.of(EventKind.TOOL_CALL)
    assert f"/workspace/{workdir}" in ran.text
    assert ran.of_session() == "continued"
    snapshot = ran.run.snapshot
    assert snapshot is not None
    assert snapshot.changes is not None, snapshot.unavailable_why
    assert "proof.txt" in [file.path for file in snapshot.changes.files]

    recalled = product.completed(thread, "MODEL recall")
    assert "history: MODEL stream 5 0.05 / MODEL run echo written by a tool" in recalled.text
    assert recalled.of_session() == "continued"
    assert [turn.run.native_turn for turn in (streamed, ran, recalled)] == [1, 2, 3]
    assert not [step for step in model.steps() if step.cut]


def test_cancel_during_a_tool_keeps_the_conversation(agent: RealAgent, product: Product) -> None:
    """The turn ends as cancelled, the command is dead, and the session takes the next message. Proves: L-10, R-07."""
    workdir = f"{agent.name}/second"
    thread = product.conversation(agent.name, workdir)
    run_id = product.submit(thread, "MODEL run touch started; sleep 50; touch never")
    wait_for((product.workspace / workdir / "started").exists, "the command runs", 120)
    product.client.cancel(run_id)
    run = product.wait_status(run_id, timeout_s=60)
    assert run.status == "cancelled", f"{run}\n{product.tell()}"
    done = product.completed(thread, "MODEL say still here")
    assert "still here" in done.text
    assert done.of_session() == "continued"
    assert not (product.workspace / workdir / "never").exists()


def test_a_settled_session_is_loaded_into_a_new_sandbox(agent: RealAgent, product: Product, model: ModelServer) -> None:
    """The sandbox is gone; the next message loads the session by its journal, and makes no step by itself. Proves: R-07."""
    thread = product.conversation(agent.name, f"{agent.name}/third")
    product.completed(thread, "MODEL say remember the heron")
    launcher, _ = product.sandboxes()[thread]
    kill(launcher, signal.SIGKILL)
    steps = len(model.steps())
    done = product.completed(thread, "MODEL recall")
    assert "history: MODEL say remember the heron" in done.text
    assert done.of_session() == "reloaded"
    assert len(model.steps()) == steps + 1
