"""Git as plumbing over a bare repository of our own, which no sandbox sees.

No Git command ever reads a Workdir, whose nested repositories, attributes and hooks could run programs. The configuration of
system and user is left out, templates too, and so are filters, text conversions and external diffs; compression is off,
because a snapshot of 200 MB must fit into its time.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from turnkeeper.kit import text

EMPTY_TREE: Final = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""Git's id of the tree without entries, which every repository knows."""

_CONFIG: Final = (
    "core.compression=0",
    "pack.compression=0",
    "core.bigFileThreshold=256k",
    "core.attributesFile=/dev/null",
    "core.hooksPath=/dev/null",
    "core.quotePath=true",
    "fastimport.unpackLimit=0",
    "gc.auto=0",
    "maintenance.auto=false",
    "pack.threads=1",
)
_STDERR_TAIL: Final = 300


class GitFailedError(Exception):
    """A Git command did not do what it should. `status` is its exit status; None where it did not start or said too much."""

    def __init__(self, command: str, status: int | None, text: str) -> None:
        super().__init__(f"git {command}: {text}")
        self.command = command
        self.status = status


@dataclass(frozen=True)
class Git:
    """Commands on the repository `directory`."""

    directory: Path

    def create(self) -> "Sequence[str]":
        """The arguments that make the repository."""
        return ("init", "--quiet", "--bare", "--template=", "--initial-branch=none", str(self.directory))

    async def run(self, *arguments: str | bytes, output_bytes_max: int = 64 << 10) -> bytes:
        """Standard output of a command that must succeed; `GitFailedError` where it does not, or says more than that."""
        async with self.start(*arguments, stdin=asyncio.subprocess.DEVNULL) as process:
            output, errors = await asyncio.gather(
                _read(process.stdout, output_bytes_max), _read(process.stderr, 64 << 10, keep_reading=True)
            )
            status = await process.wait()
        if status != 0:
            raise GitFailedError(_name(arguments), status, _line(errors))
        return output

    @contextlib.asynccontextmanager
    async def start(self, *arguments: str | bytes, stdin: int) -> AsyncGenerator[asyncio.subprocess.Process]:
        """A running command, killed and reaped when the block is left early."""
        settings = [part for setting in _CONFIG for part in ("-c", setting)]
        try:
            process = await asyncio.create_subprocess_exec(
                "git",
                "--literal-pathspecs",
                *settings,
                *arguments,
                stdin=stdin,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._environment(),
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise GitFailedError(_name(arguments), None, f"not started: {error.strerror}") from error
        try:
            yield process
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            if process.stdin is not None:
                process.stdin.close()
            await process.wait()

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": "/nonexistent",
            "LC_ALL": "C",
            "GIT_DIR": str(self.directory),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_OPTIONAL_LOCKS": "0",
        }


async def failure_of(process: asyncio.subprocess.Process, name: str) -> GitFailedError:
    """What a command that has ended said on its way out."""
    errors = await _read(process.stderr, 64 << 10, keep_reading=True)
    return GitFailedError(name, await process.wait(), _line(errors))


async def _read(stream: asyncio.StreamReader | None, bytes_max: int, *, keep_reading: bool = False) -> bytes:
    if stream is None:
        return b""
    data = bytearray()
    while part := await stream.read(1 << 16):
        if len(data) + len(part) <= bytes_max:
            data += part
        elif not keep_reading:
            raise GitFailedError("command", None, f"said more than {bytes_max} bytes")
    return bytes(data)


def _name(arguments: Sequence[str | bytes]) -> str:
    first = arguments[0] if arguments else ""
    return first if isinstance(first, str) else text.decode(first)


def _line(errors: bytes) -> str:
    lines = [line for line in text.decode(errors[-4096:]).splitlines() if line.strip()]
    return lines[-1][:_STDERR_TAIL] if lines else "no message"
