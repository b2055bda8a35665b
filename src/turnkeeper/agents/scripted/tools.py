"""Directives that touch files and run commands: each is shown as a tool call."""

from __future__ import annotations

import os
import select
import signal

from turnkeeper.agents.scripted.turn import Turn, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing and subprocess costs every cold start
    from pathlib import Path
    from subprocess import Popen
    from typing import IO, Any

OUTPUT_BYTES_MAX = 65536
POLL_S = 0.05


def text_content(text: str) -> list[dict[str, Any]]:
    """The content of a tool call that is plain text."""
    return [{"type": "content", "content": {"type": "text", "text": text}}]


def absolute(turn: Turn, name: str, usage: str) -> Path:
    """The path that ``name`` is, relative to the session's cwd."""
    from pathlib import Path

    if not name or "\0" in name:
        raise UsageError(usage)
    return Path(turn.session.cwd, name)


def write(turn: Turn, argument: str) -> None:
    name, _, text = argument.partition(" ")
    path = absolute(turn, name, "PATH TEXT")
    call = turn.tool("edit", f"Write {name}", locations=[{"path": str(path)}])
    try:
        old = path.read_text(encoding="utf-8", errors="replace") if path.exists() else None
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", encoding="utf-8")
    except (OSError, UnicodeEncodeError) as error:
        turn.tool_done(call, "failed", content=text_content(str(error)))
        turn.say(f"cannot write {name}: {error}")
        return
    change = {"type": "diff", "path": str(path), "oldText": old, "newText": f"{text}\n"}
    turn.tool_done(call, "completed", content=[change])
    turn.say(f"wrote {name}")


def read(turn: Turn, argument: str) -> None:
    path = absolute(turn, argument, "PATH")
    call = turn.tool("read", f"Read {argument}", locations=[{"path": str(path)}])
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        turn.tool_done(call, "failed", content=text_content(str(error)))
        turn.say(f"cannot read {argument}: {error.strerror}")
        return
    turn.tool_done(call, "completed", content=text_content(text))
    turn.say(f"read {argument}")


def run(turn: Turn, argument: str) -> None:
    import subprocess

    if not argument or "\0" in argument:
        raise UsageError("COMMAND")
    call = turn.tool("execute", argument, rawInput={"command": argument})
    process = subprocess.Popen(
        argument,
        shell=True,
        cwd=turn.session.cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    turn.call_on_cancel(lambda: kill_group(process.pid))
    output = collect(process, process.stdout) if process.stdout else b""
    turn.call_on_cancel(None)
    status = process.wait()
    text = output.decode(errors="replace")
    ended = "completed" if status == 0 else "failed"
    turn.tool_done(call, ended, content=text_content(text), rawOutput={"exitCode": status})
    turn.check()
    turn.say(f"ran {argument}: exit {status}")


def kill_group(pid: int) -> None:
    """Kill a command and what it started in its process group."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def collect(process: Popen[bytes], pipe: IO[bytes]) -> bytes:
    """The tail of the output. Ends with the command, though a process that it left behind may hold the pipe open."""
    fd = pipe.fileno()
    kept = b""
    while True:
        ended = process.poll() is not None
        ready, _, _ = select.select([fd], [], [], 0 if ended else POLL_S)
        chunk = os.read(fd, OUTPUT_BYTES_MAX) if ready else b""
        kept = (kept + chunk)[-OUTPUT_BYTES_MAX:]
        if (ready and not chunk) or (ended and not ready):
            pipe.close()
            return kept


def background(turn: Turn, argument: str) -> None:
    import subprocess

    if not argument or "\0" in argument:
        raise UsageError("COMMAND")
    # The first shell starts the second in the background and exits: the command's parent is dead, its session foreign.
    script = '/bin/sh -c "$1" </dev/null >/dev/null 2>&1 & echo $!'
    done = subprocess.run(
        ["/bin/sh", "-c", script, "sh", argument],
        cwd=turn.session.cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        start_new_session=True,
        check=False,
    )
    turn.say(f"background {done.stdout.decode(errors='replace').strip()}")


DIRECTIVES = {"/write": write, "/read": read, "/run": run, "/background": background}
