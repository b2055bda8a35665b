"""What each directive of the scripted agent does."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import acp
import pytest

from agents.acp_client import Drive, process_state, scripted, until


async def one_turn(agent: Drive, cwd: Path, text: str) -> str:
    """A new session with one prompt; returns its stop reason."""
    session = (await agent.conn.new_session(cwd=str(cwd), mcp_servers=[])).session_id
    return await agent.prompt(session, text)


async def test_write_and_read_are_tool_calls(tmp_path: Path) -> None:
    """The edit shows its diff, the read its text; folders are made; paths are relative to the cwd."""
    work = tmp_path / "work"
    async with scripted(tmp_path) as agent:
        await one_turn(agent, work, "/write a/b.txt one two\n/write a/b.txt three\n/read a/b.txt\n/read missing")
        assert (work / "a" / "b.txt").read_text() == "three\n"
        path = str(work / "a" / "b.txt")
        started = [(call["kind"], call["title"], call["status"]) for call in agent.seen.of("tool_call")]
        assert started == [
            ("edit", "Write a/b.txt", "in_progress"),
            ("edit", "Write a/b.txt", "in_progress"),
            ("read", "Read a/b.txt", "in_progress"),
            ("read", "Read missing", "in_progress"),
        ]
        done = agent.seen.of("tool_call_update")
        assert [update["status"] for update in done] == ["completed", "completed", "completed", "failed"]
        assert done[0]["content"] == [{"type": "diff", "path": path, "oldText": None, "newText": "one two\n"}]
        assert done[1]["content"] == [{"type": "diff", "path": path, "oldText": "one two\n", "newText": "three\n"}]
        assert done[2]["content"][0]["content"]["text"] == "three\n"
        assert agent.seen.text().startswith("wrote a/b.txt\nwrote a/b.txt\nread a/b.txt\ncannot read missing: ")
        assert len({call["toolCallId"] for call in agent.seen.of("tool_call")}) == 4


async def test_run_shows_output_and_status(tmp_path: Path) -> None:
    """Both streams are shown; an exit status that is not 0 makes the tool call fail; a left child does not hold it."""
    async with scripted(tmp_path) as agent:
        started = time.monotonic()
        await one_turn(agent, tmp_path / "work", "/run pwd; echo err >&2; sleep 30 & echo $! > pid\n/run exit 3")
        assert time.monotonic() - started < 20
        os.kill(int((tmp_path / "work" / "pid").read_text()), signal.SIGKILL)
        first, second = agent.seen.of("tool_call_update")
        assert first["status"] == "completed"
        assert first["content"][0]["content"]["text"] == f"{tmp_path}/work\nerr\n"
        assert (second["status"], second["rawOutput"]) == ("failed", {"exitCode": 3})
        assert agent.seen.text().endswith("\nran exit 3: exit 3")


async def test_run_keeps_the_tail_of_much_output(tmp_path: Path) -> None:
    """Output beyond 64 KiB is cut at its begin."""
    async with scripted(tmp_path) as agent:
        await one_turn(agent, tmp_path / "work", "/run head -c 1000000 /dev/zero | tr '\\0' x; echo end")
        text = agent.seen.of("tool_call_update")[0]["content"][0]["content"]["text"]
        assert len(text) == 65536
        assert text.endswith("xend\n")


async def test_background_leaves_a_process_that_outlives_the_agent(tmp_path: Path) -> None:
    """It has another parent than the agent, a session of its own and no descriptor of the agent's."""
    async with scripted(tmp_path) as agent:
        await one_turn(agent, tmp_path / "work", "/background exec sleep 612")
        pid = int(agent.seen.text().removeprefix("background "))
        assert parent_of(pid) != agent.process.pid
        assert os.getsid(pid) not in {os.getsid(0), os.getsid(agent.process.pid)}
        assert open_files(pid) == {"/dev/null"}
    assert process_state(pid) in {"S", "R"}
    os.kill(pid, signal.SIGKILL)
    await until(lambda: process_state(pid) in {"gone", "Z"})


async def test_chunks_are_sent_one_by_one(tmp_path: Path) -> None:
    """/tokens and /ticks: one chunk each; the ticks are times that grow."""
    async with scripted(tmp_path) as agent:
        await one_turn(agent, tmp_path / "work", "/tokens 3\n/ticks 2 0.01\n/tokens 0")
        said = [update["content"]["text"] for update in agent.seen.of("agent_message_chunk")]
        assert said[:3] == ["t1 ", "t2 ", "t3 "]
        first, second = (int(text) for text in said[3:])
        assert 9_000_000 < second - first < 10_000_000_000


async def test_what_is_not_said(tmp_path: Path) -> None:
    """A thought is no message; a late chunk comes after the response; an empty prompt says nothing."""
    async with scripted(tmp_path) as agent:
        assert await one_turn(agent, tmp_path / "work", "/think hm\n\n  \n/late afterwards") == "end_turn"
        assert agent.seen.text(kind="agent_thought_chunk") == "hm"
        await agent.seen.until(lambda: agent.seen.text() == "afterwards")
        assert await one_turn(agent, tmp_path / "work", " \n") == "end_turn"


async def test_fail_answers_with_an_error_and_the_session_goes_on(tmp_path: Path) -> None:
    """The message is the directive's; the failed turn was answered, so it is remembered."""
    async with scripted(tmp_path) as agent:
        session = (await agent.conn.new_session(cwd=str(tmp_path / "work"), mcp_servers=[])).session_id
        with pytest.raises(acp.RequestError, match=r'^out of "tokens"$') as failed:
            await agent.prompt(session, '/say before\n/fail out of "tokens"')
        assert failed.value.code == -32603
        await agent.prompt(session, "next")
        assert agent.seen.text() == "beforeturn 2, remembering 1 earlier turns: next"


async def test_misuse_is_answered_by_a_sentence(tmp_path: Path) -> None:
    """Unknown directives and wrong arguments end neither the turn nor the agent."""
    prompt = (
        "/nope\n/sleep long\n/tokens -1\n/exit 256\n/bytes xyz\n/line 5\n/fault nonsense\n/write\n/run\n/ask\n/say on"
    )
    async with scripted(tmp_path) as agent:
        assert await one_turn(agent, tmp_path / "work", prompt) == "end_turn"
        said = agent.seen.text().split("\n")
        assert said[0] == "unknown directive /nope"
        assert said[-1] == "on"
        assert len(said) == 11
        assert all(line.startswith("usage: /") for line in said[1:-1])


async def test_spawn_is_not_available(tmp_path: Path) -> None:
    """The answer is a sentence."""
    async with scripted(tmp_path) as agent:
        await one_turn(agent, tmp_path / "work", "/spawn scripted do something")
        assert agent.seen.text() == "spawn is not available"


def parent_of(pid: int) -> int:
    """The process's parent now."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def open_files(pid: int) -> set[str]:
    """What the process's descriptors are."""
    return {str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()}
