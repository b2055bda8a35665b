"""Every fault at every stage, seen by the official client library (what the product's tests of F07 build upon)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import acp
import pytest
from acp.schema import PermissionOption, RequestPermissionResponse, ToolCallUpdate

from agents.acp_client import Drive, by_kind, scripted, until

ENDINGS = {"exit0": 0, "exit1": 1, "exit7": 7, "segv": -11}


async def never(_call: ToolCallUpdate, _options: list[PermissionOption]) -> RequestPermissionResponse:
    """Leave the permission open: an answer written to a dead agent would make the library's close() raise."""
    return await asyncio.get_running_loop().create_future()


async def stages(agent: Drive, cwd: str) -> None:
    """Walk through every stage after initialize."""
    session = (await agent.conn.new_session(cwd=cwd, mcp_servers=[])).session_id
    await agent.conn.load_session(cwd=cwd, session_id=session, mcp_servers=[])
    await agent.conn.resume_session(cwd=cwd, session_id=session, mcp_servers=[])
    await agent.prompt(session, "/say before\n/ask May I?\n/say after")


@pytest.mark.parametrize("fault", ENDINGS)
@pytest.mark.parametrize("stage", ["initialize", "new", "load", "resume", "prompt", "permission"])
async def test_leaving(tmp_path: Path, stage: str, fault: str) -> None:
    """Case: F07 (the instrument). The process ends as ordered, a line on stderr says so, the prompt is in the ledger."""
    ledger = tmp_path / "ledger"
    env = {"SCRIPTED_AGENT_FAULT": f"{stage}:{fault}", "SCRIPTED_AGENT_LEDGER": str(ledger)}
    if stage == "initialize":
        with pytest.raises(ConnectionError):
            async with scripted(tmp_path, answer=None, **env):
                pytest.fail("initialize was answered")
    else:
        async with scripted(tmp_path, answer=never, **env) as agent:
            with pytest.raises(ConnectionError):
                await stages(agent, str(tmp_path / "work"))
            assert await agent.process.wait() == ENDINGS[fault]
            assert (agent.seen.text() == "before") is (stage == "permission")
    assert (tmp_path / "stderr.log").read_text() == f"scripted agent: fault {fault} at {stage}\n"
    assert ledger.exists() is (stage in {"prompt", "permission"})


@pytest.mark.parametrize("stage", ["new", "load", "resume", "prompt", "permission"])
async def test_stdout_closed_while_the_process_lives(tmp_path: Path, stage: str) -> None:
    """Case: F07 (the instrument). The reader sees the end of stdout; the process stays, also without stdin, until killed."""
    async with scripted(tmp_path, answer=never, SCRIPTED_AGENT_FAULT=f"{stage}:close-stdout") as agent:
        with pytest.raises(ConnectionError):
            await stages(agent, str(tmp_path / "work"))
        assert agent.process.stdin is not None
        agent.process.stdin.close()
        await still_there(agent)
        agent.process.kill()
        assert await agent.process.wait() == -9


@pytest.mark.parametrize("stage", ["new", "load", "resume", "prompt", "permission"])
async def test_never_answering(tmp_path: Path, stage: str) -> None:
    """The stage is not answered, other requests are; it ends with stdin."""
    async with scripted(tmp_path, answer=by_kind("allow_once"), SCRIPTED_AGENT_FAULT=f"{stage}:hang") as agent:
        walk = asyncio.create_task(stages(agent, str(tmp_path / "work")))
        log = tmp_path / "stderr.log"
        await until(lambda: f"fault hang at {stage}" in log.read_text())
        await agent.conn.initialize(protocol_version=acp.PROTOCOL_VERSION)  # everything before it has been read
        assert not walk.done()
        walk.cancel()
        agent.process.stdin.close() if agent.process.stdin else None
        assert await asyncio.wait_for(agent.process.wait(), 5) == 0


async def test_hang_ignores_cancel(tmp_path: Path) -> None:
    """/hang: no answer, not even to a cancel; the session stays busy, others go on."""
    async with scripted(tmp_path) as agent:
        cwd = str(tmp_path / "work")
        session = (await agent.conn.new_session(cwd=cwd, mcp_servers=[])).session_id
        turn = asyncio.create_task(agent.prompt(session, "/say begun\n/hang"))
        await agent.seen.until(lambda: "begun" in agent.seen.text())
        await agent.conn.cancel(session_id=session)
        with pytest.raises(acp.RequestError, match="a prompt is running"):
            await agent.prompt(session, "again")
        other = (await agent.conn.new_session(cwd=cwd, mcp_servers=[])).session_id
        assert await agent.prompt(other, "/say fine") == "end_turn"
        assert not turn.done()
        turn.cancel()


async def test_a_fault_can_wait_for_its_turn(tmp_path: Path) -> None:
    """STAGE:FAULT:N happens at the Nth time only; a delay delays; several may be ordered."""
    async with scripted(tmp_path, SCRIPTED_AGENT_FAULT="prompt:exit5:2, new:delay=0.05") as agent:
        session = (await agent.conn.new_session(cwd=str(tmp_path / "work"), mcp_servers=[])).session_id
        assert await agent.prompt(session, "one") == "end_turn"
        with pytest.raises(ConnectionError):
            await agent.prompt(session, "two")
        assert await agent.process.wait() == 5


async def test_a_fault_in_mid_turn(tmp_path: Path) -> None:
    """/fault: after something was said, stdout closes and the process lives."""
    async with scripted(tmp_path) as agent:
        session = (await agent.conn.new_session(cwd=str(tmp_path / "work"), mcp_servers=[])).session_id
        with pytest.raises(ConnectionError):
            await agent.prompt(session, "/say half\n/fault close-stdout")
        assert agent.seen.text() == "half"
        assert agent.process.returncode is None
        agent.process.kill()


async def test_a_deaf_agent_is_ended_by_kill_alone(tmp_path: Path) -> None:
    """SCRIPTED_AGENT_DEAF: SIGTERM and the end of stdin do nothing."""
    async with scripted(tmp_path, SCRIPTED_AGENT_DEAF="1") as agent:
        agent.process.terminate()
        session = (await agent.conn.new_session(cwd=str(tmp_path / "work"), mcp_servers=[])).session_id
        assert await agent.prompt(session, "/say alive") == "end_turn"
        agent.process.terminate()
        assert agent.process.stdin is not None
        agent.process.stdin.close()
        await still_there(agent)
        agent.process.kill()
        assert await agent.process.wait() == -9


async def still_there(agent: Drive) -> None:
    """Fails if the agent ends within 0.3 s."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(agent.process.wait(), 0.3)


async def test_the_stored_session_is_whole_after_a_crash(tmp_path: Path) -> None:
    """The session's file is replaced, never written in place: it parses after a crash in mid-turn."""
    async with scripted(tmp_path) as agent:
        session = (await agent.conn.new_session(cwd=str(tmp_path / "work"), mcp_servers=[])).session_id
        await agent.prompt(session, "one")
        with pytest.raises(ConnectionError):
            await agent.prompt(session, "/crash")
        await agent.process.wait()
    stored = json.loads((tmp_path / "home" / ".scripted-agent" / "sessions" / f"{session}.json").read_text())
    assert [(turn["text"], turn["stop"]) for turn in stored["turns"]] == [("one", "end_turn"), ("/crash", None)]
    assert not list((tmp_path / "work").glob("core*"))
