"""What `up` says at a terminal while it starts."""

import asyncio
import io
import os
import pty
from pathlib import Path

from turnkeeper.main.starting import Starting


async def lines_at_a_terminal(*waited_for: str) -> list[str]:
    """What is said when these are waited for, each until it was told."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal, os.fdopen(ours, "rb", buffering=0) as shown:
        starting = Starting(Path("/data"), terminal, quiet_s=0.01)
        starting.begin()
        said = await asyncio.to_thread(shown.read, 1000)
        for what in waited_for:
            starting.waits_for = what
            while what.encode() not in said:
                said += await asyncio.to_thread(shown.read, 1000)
        starting.end()
        starting.end()
        starting.waits_for = "nobody"
        await asyncio.sleep(0)
        terminal.write("end\n")
        terminal.flush()
        while b"end\r\n" not in said:
            said += await asyncio.to_thread(shown.read, 1000)
    return said.decode().split("\r\n")[:-1]


async def test_at_a_terminal_there_is_a_line_at_once_and_what_is_waited_for() -> None:
    """Each thing is named once, however long it takes; nothing is said after the start."""
    said = await lines_at_a_terminal("the database", "the provisioner")
    assert said == [
        "starting in /data …",
        "still starting: waiting for the database",
        "still starting: waiting for the provisioner",
        "end",
    ]


async def test_nobody_else_is_told_anything() -> None:
    """A log or a script reads errors there."""
    out = io.StringIO()
    starting = Starting(Path("/data"), out, quiet_s=0)
    starting.begin()
    await asyncio.sleep(0)
    starting.end()
    assert out.getvalue() == ""
