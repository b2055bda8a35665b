"""Real agents over ACP without the product: that the recipes, the model server and the configuration work.

The turns through the whole product build on the same pieces.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from pathlib import Path

import pytest

from agents.acp_client import Answerer, Drive, by_kind, drive
from e2e.agents.install import Missing
from e2e.agents.real_agent import NAMES, RealAgent, real_agent
from e2e.model_server import ModelServer, model_server
from turnkeeper.domain.agent import AgentDefinition, parse_definition

pytestmark = [pytest.mark.agents, pytest.mark.timeout(240)]

ALLOW = by_kind("allow_once", "allow_always")


@pytest.fixture
def model() -> Generator[ModelServer]:
    """A model of this test's own."""
    with model_server() as server:
        yield server


@pytest.fixture(params=NAMES)
def agent(request: pytest.FixtureRequest, model: ModelServer) -> RealAgent:
    """Each real agent that is installed here."""
    found = real_agent(request.param, model.url)
    if isinstance(found, Missing):
        pytest.skip(found.why)
    return found


def test_the_product_accepts_it(agent: RealAgent) -> None:
    """As a definition it is valid, and what it needs is there."""
    assert isinstance(parse_definition(agent.definition()), AgentDefinition)
    assert all(Path(path).exists() for path in (agent.command[0], *agent.programs))


@contextlib.asynccontextmanager
async def running(agent: RealAgent, folder: Path, answer: Answerer = ALLOW) -> AsyncGenerator[Drive]:
    """The agent with HOME and cwd below `folder`; both stay for the next process."""
    home = folder / "home"
    (folder / "work").mkdir(exist_ok=True)
    env = {"HOME": str(home), "PATH": os.environ["PATH"], **agent.env}
    home.mkdir(exist_ok=True)
    log = folder / "stderr.log"
    async with drive(agent.command, env=env, cwd=folder / "work", stderr=log, answer=answer, start_s=90) as driven:
        yield driven


async def new_session(driven: Drive, folder: Path) -> str:
    """A session in the work folder."""
    async with asyncio.timeout(60):
        return (await driven.conn.new_session(cwd=str(folder / "work"), mcp_servers=[])).session_id


async def test_streamed_text_a_shell_command_and_a_second_turn(
    agent: RealAgent, model: ModelServer, tmp_path: Path
) -> None:
    """Text arrives in chunks; a command writes a file in the cwd; the second turn's history holds the first."""
    async with running(agent, tmp_path) as driven:
        session = await new_session(driven, tmp_path)
        assert await driven.prompt(session, "MODEL stream 5 0.05") == "end_turn"
        assert "c1 c2 c3 c4 c5" in driven.seen.text(session)
        assert len(driven.seen.of("agent_message_chunk", session)) >= 2

        assert await driven.prompt(session, "MODEL run echo written by a tool > proof.txt && pwd") == "end_turn"
        assert (tmp_path / "work" / "proof.txt").read_text() == "written by a tool\n"
        assert driven.seen.of("tool_call", session)
        assert "done: " in driven.seen.text(session)
        assert f"{tmp_path}/work" in driven.seen.text(session)

        assert await driven.prompt(session, "MODEL recall") == "end_turn"
        said = driven.seen.text(session)
        assert "history: MODEL stream 5 0.05 / MODEL run echo written by a tool" in said
    assert [step for step in model.steps() if step.cut] == []


async def test_a_new_process_continues_the_session(agent: RealAgent, model: ModelServer, tmp_path: Path) -> None:
    """By resume where it is offered, and by load, which replays: no model call by itself, and the history is there."""
    async with running(agent, tmp_path) as driven:
        session = await new_session(driven, tmp_path)
        assert await driven.prompt(session, "MODEL say remember the heron") == "end_turn"
    if agent.resumes:
        async with running(agent, tmp_path) as driven:
            await reopen(driven.conn.resume_session, model, tmp_path, session)
            assert driven.seen.text(session) == ""
            assert await driven.prompt(session, "MODEL say and the otter") == "end_turn"
    async with running(agent, tmp_path) as driven:
        await reopen(driven.conn.load_session, model, tmp_path, session)
        await driven.seen.until(lambda: "remember the heron" in driven.seen.text(session))
        assert await driven.prompt(session, "MODEL recall") == "end_turn"
        expected = ["MODEL say remember the heron", *(["MODEL say and the otter"] if agent.resumes else [])]
        assert f"history: {' / '.join(expected)}" in driven.seen.text(session)


async def reopen(way: Callable[..., Awaitable[object]], model: ModelServer, folder: Path, session: str) -> None:
    """Open a session that another process has settled; fails if that makes a step of a turn."""
    steps = len(model.steps())
    async with asyncio.timeout(60):
        await way(cwd=str(folder / "work"), session_id=session, mcp_servers=[])
    assert len(model.steps()) == steps


async def test_cancel_during_a_tool(agent: RealAgent, tmp_path: Path) -> None:
    """A long shell command: the turn ends as cancelled, and the session takes the next prompt."""
    started = tmp_path / "work" / "started"
    async with running(agent, tmp_path) as driven:
        session = await new_session(driven, tmp_path)
        turn = asyncio.create_task(driven.prompt(session, "MODEL run touch started; sleep 50; touch never"))
        async with asyncio.timeout(60):
            while not started.exists():  # noqa: ASYNC110  nothing signals what the agent's tool does
                await asyncio.sleep(0.05)
        await driven.conn.cancel(session_id=session)
        assert await asyncio.wait_for(turn, 20) == "cancelled"
        assert await driven.prompt(session, "MODEL say still here") == "end_turn"
        assert "still here" in driven.seen.text(session)
        assert not (tmp_path / "work" / "never").exists()


async def test_cancel_while_streaming(agent: RealAgent, model: ModelServer, tmp_path: Path) -> None:
    """The turn ends as cancelled, and the model's stream is dropped."""
    async with running(agent, tmp_path) as driven:
        session = await new_session(driven, tmp_path)
        turn = asyncio.create_task(driven.prompt(session, "MODEL stream 600 0.1"))
        await driven.seen.until(lambda: "c2 " in driven.seen.text(session), within_s=60)
        await driven.conn.cancel(session_id=session)
        assert await asyncio.wait_for(turn, 20) == "cancelled"
        assert "c600" not in driven.seen.text(session)
        async with asyncio.timeout(20):
            while not any(step.cut for step in model.steps()):  # noqa: ASYNC110  the server runs in threads
                await asyncio.sleep(0.05)


async def test_a_rejected_tool_does_not_run(agent: RealAgent, tmp_path: Path) -> None:
    """A command that needs permission and gets none leaves no trace; the turn ends by itself."""
    async with running(agent, tmp_path, by_kind("reject_once", "reject_always")) as driven:
        session = await new_session(driven, tmp_path)
        stop = await driven.prompt(session, "MODEL run touch forbidden.txt")
        assert stop in {"end_turn", "cancelled", "refusal"}
        assert driven.seen.asked
        assert not (tmp_path / "work" / "forbidden.txt").exists()
