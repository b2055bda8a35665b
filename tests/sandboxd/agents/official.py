"""An agent built on the official protocol package: what the manager sends must be what that package accepts."""

import asyncio
import json
import sys
from typing import Any, cast

import acp
from acp import schema

SEEN: list[dict[str, Any]] = []


class Official:
    """Says, thinks, plans, calls a tool, asks for a permission and a question, and tells what it heard."""

    def __init__(self) -> None:
        self._conn: Any = None
        self._cancelled = asyncio.Event()

    def on_connect(self, conn: Any) -> None:
        self._conn = conn

    async def initialize(
        self, protocol_version: int, client_capabilities: Any = None, client_info: Any = None, **_: Any
    ) -> schema.InitializeResponse:
        SEEN.append({"client": client_info.name, "capabilities": client_capabilities.model_dump(by_alias=True)})
        return schema.InitializeResponse(
            protocol_version=protocol_version,
            agent_capabilities=schema.AgentCapabilities(
                load_session=True,
                session_capabilities=schema.SessionCapabilities(resume=schema.SessionResumeCapabilities()),
            ),
            agent_info=schema.Implementation(name="official", title="Official", version="1"),
        )

    async def new_session(self, cwd: str, mcp_servers: Any = None, **_: Any) -> schema.NewSessionResponse:
        SEEN.append({"cwd": cwd, "mcp": [server.name for server in mcp_servers]})
        # An update before the session's id is known to anybody.
        await self._conn.session_update("s-1", acp.update_agent_message_text("too early"))
        return schema.NewSessionResponse(session_id="s-1")

    async def resume_session(self, session_id: str, cwd: str, **_: Any) -> schema.ResumeSessionResponse:
        # Some agents replay here although they should not; it belongs to no turn.
        await self._conn.session_update(session_id, acp.update_agent_message_text(f"replayed in {cwd}"))
        return schema.ResumeSessionResponse()

    async def prompt(self, session_id: str, prompt: Any, **_: Any) -> schema.PromptResponse:
        text = prompt[0].text
        if text == "wait":
            await self._cancelled.wait()
            return schema.PromptResponse(stop_reason="cancelled")
        await self._conn.session_update(session_id, acp.update_agent_thought_text("hm"))
        await self._conn.session_update(session_id, acp.update_plan([acp.plan_entry("one", status="in_progress")]))
        call = acp.start_tool_call("c1", "Edit a file", kind="edit", status="pending", raw_input={"path": "a"})
        await self._conn.session_update(session_id, call)
        options = [
            schema.PermissionOption(option_id="y", name="Yes", kind="allow_once"),
            schema.PermissionOption(option_id="n", name="No", kind="reject_once"),
        ]
        # A request that repeats neither title nor kind: they are those of the announced call.
        asked = await self._conn.request_permission(session_id, schema.ToolCallUpdate(tool_call_id="c1"), options)
        SEEN.append(asked.model_dump(by_alias=True, exclude_none=True))
        done = acp.update_tool_call("c1", status="completed", content=[acp.tool_diff_content("a", "new", "old")])
        await self._conn.session_update(session_id, done)
        try:
            await self._conn.read_text_file(session_id=session_id, path="/etc/passwd")
        except acp.RequestError as error:
            SEEN.append({"fs": error.code})
        await self._conn.session_update(session_id, acp.update_agent_message_text(json.dumps(SEEN)))
        return schema.PromptResponse(stop_reason="end_turn")

    async def cancel(self, session_id: str, **_: Any) -> None:
        SEEN.append({"cancelled": session_id})
        self._cancelled.set()


if __name__ == "__main__":
    sys.exit(asyncio.run(acp.run_agent(cast("Any", Official()), use_unstable_protocol=True)))
