"""Against an agent that is built on the official protocol package, which checks every message that it is sent."""

import json
import sys
from pathlib import Path
from typing import Any

from sandboxd.manager import Manager, said

AGENT = [sys.executable, str(Path(__file__).parent / "agents" / "official.py")]
MCP: dict[str, Any] = {"name": "tools", "command": "/bin/true", "args": [], "env": []}


async def test_official_package(manager: Manager) -> None:
    """Proves: R-07. Initialize, new, prompt, permission, tool calls, cancel and resume in the package's own terms."""
    worker = manager.activation()
    rules = [{"kind": "edit", "action": "allow"}]
    events = await worker.turn("go", command=AGENT, permission_rules=rules, mcp_servers=[MCP], timeout_s=50)
    receipt = events[-1]["receipt"]
    assert receipt["outcome"] == "completed", receipt
    seen = json.loads(said(events))
    assert seen[0]["client"] == "turnkeeper"
    assert seen[0]["capabilities"]["terminal"] is False
    assert seen[0]["capabilities"]["fs"]["readTextFile"] is False
    assert seen[1] == {"cwd": str(manager.workdir), "mcp": ["tools"]}
    assert seen[2]["outcome"] == {"outcome": "selected", "optionId": "y"}
    assert seen[3] == {"fs": -32601}
    kinds = [event.get("kind") for event in events[:-1]]
    assert kinds == ["session", "thought", "plan", "tool_call", "permission", "tool_update", "text"]
    by_kind = {event["kind"]: event["data"] for event in events[:-1]}
    assert by_kind["session"]["agent"] == {"name": "official", "version": "1"}
    assert by_kind["tool_call"]["input"] == {"path": "a"}
    assert (by_kind["permission"]["title"], by_kind["permission"]["kind"]) == ("Edit a file", "edit")
    assert by_kind["tool_update"]["content"][0]["type"] == "diff"
    assert by_kind["plan"]["entries"][0]["status"] == "in_progress"

    second = worker.next()
    (await second.take()).ok()
    assert (await second.session(command=AGENT, recorded=worker.recorded(receipt))).ok()["mode"] == "continued"
    (await second.prompt("wait")).ok()
    assert (await second.call("POST", "/v1/cancel")).ok()["sent"]
    receipt = (await second.events())[-1]["receipt"]
    assert (receipt["outcome"], receipt["native_turn"]) == ("cancelled", 2)

    await manager.restart()
    third = second.next(boot_id=manager.boot_id)
    (await third.take()).ok()
    body = {"command": AGENT, "recorded": worker.recorded(receipt), "timeout_s": 50}
    assert (await third.session(**body)).ok()["mode"] == "reloaded"
    (await third.prompt("go on")).ok()
    events = await third.events()
    assert "replayed" not in json.dumps(events)
    assert events[-1]["receipt"]["native_turn"] == 3
