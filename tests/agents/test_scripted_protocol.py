"""The scripted agent against the official client library: what it offers, sessions, cancel, persistence."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import acp
import pytest
from acp.schema import DeniedOutcome, PermissionOption, RequestPermissionResponse, ToolCallUpdate

from agents.acp_client import by_kind, process_state, scripted, until


async def test_it_offers_what_it_can(tmp_path: Path) -> None:
    """initialize answers protocol 1 with load, resume and close, and no authentication."""
    async with scripted(tmp_path) as agent:
        offered = agent.hello.agent_capabilities
        assert agent.hello.protocol_version == 1
        assert agent.hello.auth_methods == []
        assert offered is not None
        assert offered.load_session
        assert offered.session_capabilities is not None
        assert offered.session_capabilities.resume is not None
        assert offered.session_capabilities.close is not None


async def test_capabilities_can_be_withheld(tmp_path: Path) -> None:
    """A withheld capability is neither offered nor answered."""
    async with scripted(
        tmp_path, SCRIPTED_AGENT_NO_LOAD="1", SCRIPTED_AGENT_NO_RESUME="1", SCRIPTED_AGENT_NO_CLOSE="1"
    ) as agent:
        offered = agent.hello.agent_capabilities
        assert offered is not None
        assert not offered.load_session
        assert offered.session_capabilities is not None
        assert offered.session_capabilities.resume is None
        cwd = str(tmp_path / "work")
        session = (await agent.conn.new_session(cwd=cwd, mcp_servers=[])).session_id
        with pytest.raises(acp.RequestError) as refused:
            await agent.conn.load_session(cwd=cwd, session_id=session, mcp_servers=[])
        assert refused.value.code == -32601
        with pytest.raises(acp.RequestError, match="not supported"):
            await agent.conn.resume_session(cwd=cwd, session_id=session, mcp_servers=[])


async def test_plain_text_names_turn_and_memory(tmp_path: Path) -> None:
    """Three turns in one process, counted and remembered."""
    async with scripted(tmp_path) as agent:
        session = (await agent.conn.new_session(cwd=str(tmp_path / "work"), mcp_servers=[])).session_id
        for word in ("one", "two", "three"):
            assert await agent.prompt(session, word) == "end_turn"
        said = [update["content"]["text"] for update in agent.seen.of("agent_message_chunk")]
        assert said == [
            "turn 1, remembering 0 earlier turns: one",
            "turn 2, remembering 1 earlier turns: two",
            "turn 3, remembering 2 earlier turns: three",
        ]


@pytest.mark.parametrize("way", ["load", "resume"])
async def test_a_session_lives_on_in_a_new_process(tmp_path: Path, way: str) -> None:
    """load replays the history as updates, resume does not; both remember it."""
    cwd = str(tmp_path / "work")
    async with scripted(tmp_path) as agent:
        session = (await agent.conn.new_session(cwd=cwd, mcp_servers=[])).session_id
        await agent.prompt(session, "first\n/say and more")
    async with scripted(tmp_path) as agent:
        if way == "load":
            await agent.conn.load_session(cwd=cwd, session_id=session, mcp_servers=[])
            await agent.seen.until(lambda: len(agent.seen.updates) == 2)
            assert agent.seen.text(kind="user_message_chunk") == "first\n/say and more"
            assert agent.seen.text() == "turn 1, remembering 0 earlier turns: first\nand more"
        else:
            await agent.conn.resume_session(cwd=cwd, session_id=session, mcp_servers=[])
        before = len(agent.seen.updates)
        await agent.prompt(session, "second")
        assert before == (2 if way == "load" else 0)
        assert agent.seen.text().endswith("turn 2, remembering 1 earlier turns: second")


async def test_a_killed_turn_is_counted_and_not_remembered(tmp_path: Path) -> None:
    """The prompt of a cut turn is in the session, its answer is not."""
    cwd = str(tmp_path / "work")
    async with scripted(tmp_path) as agent:
        session = (await agent.conn.new_session(cwd=cwd, mcp_servers=[])).session_id
        with pytest.raises(ConnectionError):
            await agent.prompt(session, "/say half\n/exit 9")
        assert await agent.process.wait() == 9
    async with scripted(tmp_path) as agent:
        await agent.conn.load_session(cwd=cwd, session_id=session, mcp_servers=[])
        await agent.prompt(session, "again")
        assert agent.seen.text(kind="user_message_chunk") == "/say half\n/exit 9"
        assert agent.seen.text() == "turn 2, remembering 0 earlier turns: again"


async def test_unknown_sessions_and_other_folders_are_refused(tmp_path: Path) -> None:
    """An unknown id, a path as id, another cwd, a relative cwd: one clear error each."""
    cwd = str(tmp_path / "work")
    async with scripted(tmp_path) as agent:
        session = (await agent.conn.new_session(cwd=cwd, mcp_servers=[])).session_id
        for unknown in ("0" * 32, f"../sessions/{session}", "", "\0"):
            with pytest.raises(acp.RequestError, match="does not exist") as refused:
                await agent.conn.load_session(cwd=cwd, session_id=unknown, mcp_servers=[])
            assert refused.value.code == -32002
        with pytest.raises(acp.RequestError, match="belongs to cwd") as refused:
            await agent.conn.resume_session(cwd=str(tmp_path), session_id=session, mcp_servers=[])
        assert refused.value.code == -32602
        with pytest.raises(acp.RequestError, match="absolute path"):
            await agent.conn.new_session(cwd="work", mcp_servers=[])
        with pytest.raises(acp.RequestError, match="not open") as refused:
            await agent.prompt("0" * 32, "hello")
        assert refused.value.code == -32002


async def test_cancel_ends_a_sleep_and_the_session_goes_on(tmp_path: Path) -> None:
    """The stop reason is ``cancelled``, and the cancelled turn counts as answered."""
    async with scripted(tmp_path) as agent:
        session = (await agent.conn.new_session(cwd=str(tmp_path / "work"), mcp_servers=[])).session_id
        turn = asyncio.create_task(agent.prompt(session, "/say begun\n/sleep 600\n/say never"))
        await agent.seen.until(lambda: "begun" in agent.seen.text())
        await agent.conn.cancel(session_id=session)
        assert await asyncio.wait_for(turn, 5) == "cancelled"
        await agent.prompt(session, "next")
        assert agent.seen.text() == "begunturn 2, remembering 1 earlier turns: next"


async def test_cancel_kills_a_command_with_its_children(tmp_path: Path) -> None:
    """A cancelled ``/run`` leaves no process of its group behind."""
    async with scripted(tmp_path) as agent:
        session = (await agent.conn.new_session(cwd=str(tmp_path / "work"), mcp_servers=[])).session_id
        turn = asyncio.create_task(agent.prompt(session, "/run sleep 611 & echo $! > child; wait"))
        child = tmp_path / "work" / "child"
        await until(lambda: child.exists() and bool(child.read_text().strip()))
        await agent.conn.cancel(session_id=session)
        assert await asyncio.wait_for(turn, 5) == "cancelled"
        pid = int(child.read_text())
        await until(lambda: process_state(pid) in {"gone", "Z"})


async def test_sessions_run_side_by_side_and_each_takes_one_prompt(tmp_path: Path) -> None:
    """A second prompt in a busy session is refused, in another session it runs."""
    cwd = str(tmp_path / "work")
    async with scripted(tmp_path) as agent:
        first = (await agent.conn.new_session(cwd=cwd, mcp_servers=[])).session_id
        second = (await agent.conn.new_session(cwd=cwd, mcp_servers=[])).session_id
        turn = asyncio.create_task(agent.prompt(first, "/say begun\n/sleep 600"))
        await agent.seen.until(lambda: bool(agent.seen.text(first)))
        with pytest.raises(acp.RequestError, match="a prompt is running"):
            await agent.prompt(first, "too early")
        assert await agent.prompt(second, "meanwhile") == "end_turn"
        assert agent.seen.text(second) == "turn 1, remembering 0 earlier turns: meanwhile"
        await agent.conn.close_session(session_id=first)
        assert await asyncio.wait_for(turn, 5) == "cancelled"
        with pytest.raises(acp.RequestError, match="not open"):
            await agent.prompt(first, "closed")


async def test_ask_says_what_was_answered(tmp_path: Path) -> None:
    """Options carry their kinds; the answer is said, and the tool call ends by it."""
    async with scripted(tmp_path, answer=by_kind("allow_always")) as agent:
        session = (await agent.conn.new_session(cwd=str(tmp_path / "work"), mcp_servers=[])).session_id
        await agent.prompt(session, "/ask May I? | Once | Always=allow_always | Never=reject_always\n/ask And now?")
        assert agent.seen.text() == "answered: Always\nanswered: cancelled"
        assert [call.title for call in agent.seen.asked] == ["May I?", "And now?"]
        assert [update["status"] for update in agent.seen.of("tool_call_update")] == ["completed", "failed"]


async def test_cancel_waits_for_the_open_permission(tmp_path: Path) -> None:
    """Like real agents: a cancel ends the turn only once the client has answered the permission."""
    answered = asyncio.Event()

    async def answer(_call: ToolCallUpdate, _options: list[PermissionOption]) -> RequestPermissionResponse:
        await answered.wait()
        return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))

    async with scripted(tmp_path, answer=answer) as agent:
        session = (await agent.conn.new_session(cwd=str(tmp_path / "work"), mcp_servers=[])).session_id
        turn = asyncio.create_task(agent.prompt(session, "/ask May I?"))
        await agent.seen.until(lambda: bool(agent.seen.asked))
        await agent.conn.cancel(session_id=session)
        other = (await agent.conn.new_session(cwd=str(tmp_path / "work"), mcp_servers=[])).session_id
        assert await agent.prompt(other, "still here") == "end_turn"  # the cancel has been read by now
        assert not turn.done()
        answered.set()
        assert await asyncio.wait_for(turn, 5) == "cancelled"


async def test_the_ledger_holds_every_prompt_received(tmp_path: Path) -> None:
    """One line each: also for a session that is not open and for a prompt that kills the agent."""
    ledger = tmp_path / "ledger"
    begin = time.time_ns()
    async with scripted(tmp_path, SCRIPTED_AGENT_LEDGER=str(ledger)) as agent:
        pid = agent.process.pid
        session = (await agent.conn.new_session(cwd=str(tmp_path / "work"), mcp_servers=[])).session_id
        await agent.prompt(session, "one\ntwo \N{SNOWMAN}")
        with pytest.raises(acp.RequestError):
            await agent.prompt("nowhere", "lost")
        with pytest.raises(ConnectionError):
            await agent.prompt(session, "/crash")
        assert await agent.process.wait() == -11
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert [(line["session"], line["turn"], line["pid"], line["text"]) for line in lines] == [
        (session, 1, pid, "one\ntwo \N{SNOWMAN}"),
        ("nowhere", None, pid, "lost"),
        (session, 2, pid, "/crash"),
    ]
    times = [line["t"] for line in lines]
    assert begin < times[0] < times[1] < times[2] < time.time_ns()


async def test_a_prompt_that_cannot_be_recorded_is_not_carried_out(tmp_path: Path) -> None:
    """The ledger comes before everything else, so its failure is the prompt's."""
    async with scripted(tmp_path, SCRIPTED_AGENT_LEDGER=str(tmp_path)) as agent:
        session = (await agent.conn.new_session(cwd=str(tmp_path / "work"), mcp_servers=[])).session_id
        with pytest.raises(acp.RequestError, match="cannot be written"):
            await agent.prompt(session, "/write file text")
        assert not (tmp_path / "work" / "file").exists()
