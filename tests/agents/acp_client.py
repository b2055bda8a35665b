"""Drives an ACP agent by the official client library, recording every message in wire order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import acp
from acp.client.connection import ClientSideConnection
from acp.connection import StreamDirection, StreamEvent
from acp.schema import (
    AllowedOutcome,
    ClientCapabilities,
    DeniedOutcome,
    Implementation,
    InitializeResponse,
    PermissionOption,
    RequestPermissionResponse,
    TextContentBlock,
    ToolCallUpdate,
)

SCRIPTED = (sys.executable, "-m", "turnkeeper.agents.scripted")
LINE_BYTES_MAX = 16 * 1024 * 1024

Answerer = Callable[[ToolCallUpdate, list[PermissionOption]], Awaitable[RequestPermissionResponse]]


def by_kind(*kinds: str) -> Answerer:
    """Answers every permission request with the first option of one of these kinds, else cancelled."""

    async def answer(_call: ToolCallUpdate, options: list[PermissionOption]) -> RequestPermissionResponse:
        for kind in kinds:
            for option in options:
                if option.kind == kind:
                    return RequestPermissionResponse(
                        outcome=AllowedOutcome(outcome="selected", option_id=option.option_id)
                    )
        return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))

    return answer


@dataclass
class Recorder:
    """The client's side: answers permissions; ``updates`` holds each ``session/update``'s params in wire order."""

    answer: Answerer
    updates: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    asked: list[ToolCallUpdate] = field(default_factory=list[ToolCallUpdate])
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def observe(self, event: StreamEvent) -> None:
        """Record what arrives, synchronously: handlers run as concurrent tasks and lose the order."""
        if event.direction is StreamDirection.INCOMING and event.message.get("method") == "session/update":
            self.updates.append(event.message["params"])
            self.changed.set()

    async def request_permission(
        self, tool_call: ToolCallUpdate, options: list[PermissionOption], **_: Any
    ) -> RequestPermissionResponse:
        """Record the request, then answer it."""
        self.asked.append(tool_call)
        self.changed.set()
        return await self.answer(tool_call, options)

    async def session_update(self, **_: Any) -> None:
        """Recorded by ``observe``."""

    def on_connect(self, conn: Any) -> None:
        """Nothing to keep."""

    def of(self, kind: str, session_id: str | None = None) -> list[dict[str, Any]]:
        """The updates of one kind, e.g. ``tool_call``."""
        return [
            entry["update"]
            for entry in self.updates
            if entry["update"]["sessionUpdate"] == kind and session_id in {None, entry["sessionId"]}
        ]

    def text(self, session_id: str | None = None, kind: str = "agent_message_chunk") -> str:
        """All that was said."""
        return "".join(update["content"]["text"] for update in self.of(kind, session_id))

    async def until(self, condition: Callable[[], bool], within_s: float = 30) -> None:
        """Wait until something recorded makes ``condition`` true."""
        async with asyncio.timeout(within_s):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


@dataclass
class Drive:
    """A running agent, initialized."""

    conn: ClientSideConnection
    process: asyncio.subprocess.Process
    seen: Recorder
    hello: InitializeResponse

    async def prompt(self, session_id: str, text: str) -> str:
        """Send a prompt; returns the stop reason."""
        answer = await self.conn.prompt(session_id=session_id, prompt=[TextContentBlock(type="text", text=text)])
        return answer.stop_reason


@contextlib.asynccontextmanager
async def drive(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    stderr: Path,
    answer: Answerer | None = None,
    start_s: float = 30,
) -> AsyncGenerator[Drive]:
    """Start an agent and initialize it; at the end it is killed if the end of stdin does not end it within 2 s."""
    seen = Recorder(answer or by_kind("reject_once", "reject_always"))
    with stderr.open("ab") as noise:  # a pipe that nobody drains would hang the agent
        async with (
            acp.spawn_agent_process(
                seen,  # pyright: ignore[reportArgumentType]  file and terminal methods are not offered, so never called
                command[0],
                *command[1:],
                env=env,
                cwd=cwd,
                transport_kwargs={"stderr": noise, "limit": LINE_BYTES_MAX},
                use_unstable_protocol=True,
                observers=[seen.observe],
            ) as (conn, process)
        ):
            async with asyncio.timeout(start_s):
                hello = await conn.initialize(
                    protocol_version=acp.PROTOCOL_VERSION,
                    client_capabilities=ClientCapabilities(),
                    client_info=Implementation(name="turnkeeper-tests", version="0"),
                )
            yield Drive(conn, process, seen, hello)


@contextlib.asynccontextmanager
async def scripted(folder: Path, *, answer: Answerer | None = None, **env: str) -> AsyncGenerator[Drive]:
    """The scripted agent below ``folder``: ``home``, ``work`` (cwd) and ``stderr.log``."""
    home, work = folder / "home", folder / "work"
    home.mkdir(exist_ok=True)
    work.mkdir(exist_ok=True)
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], **env}
    async with drive(SCRIPTED, env=environment, cwd=work, stderr=folder / "stderr.log", answer=answer) as driven:
        yield driven


def process_state(pid: int) -> str:
    """The state letter of a process, or ``gone``."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "gone"


async def until(condition: Callable[[], bool], within_s: float = 10) -> None:
    """Wait for a fact of the operating system, looking every 10 ms."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110  nothing signals what other processes do
            await asyncio.sleep(0.01)
