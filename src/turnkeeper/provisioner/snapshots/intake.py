"""A manager's walk becomes a commit: frames in, `git fast-import` out, without ever holding a whole file.

The manager runs where the agent does, so nothing of a walk is believed: paths are checked again, counts and sizes are
counted here, and a stream that ends without its `end` frame is no snapshot.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

from pydantic import BaseModel, ValidationError

from turnkeeper.kit import text
from turnkeeper.provisioner.snapshots.git import EMPTY_TREE, Git, failure_of
from turnkeeper.wire.walk import EndFrame, FileFrame

_HEADER_BYTES_MAX: Final = 64 << 10
_PATH_BYTES_MAX: Final = 4096 * 4
_WRITE_BYTES: Final = 1 << 20


class WalkUnusableError(Exception):
    """The walk gives no snapshot. The text says why, for whoever reads the change summary."""


@dataclass(frozen=True)
class WalkLimits:
    """How much of a Workdir is recorded at most."""

    files_max: int
    size_bytes_max: int


@dataclass
class Taken:
    """What was recorded: the tree's id, count, size, and the size of each file by its path (bytes)."""

    tree_id: str = EMPTY_TREE
    files: int = 0
    size_bytes: int = 0
    sizes: dict[bytes, int] = field(default_factory=dict[bytes, int])


async def take_in(git: Git, ref: str, number: int, chunks: AsyncIterator[bytes], limits: WalkLimits) -> Taken:
    """Record the walk as a commit at `ref`. `WalkUnusableError`, `GitFailedError`; then the ref is not changed."""
    reader = _FrameReader(chunks)
    taken = Taken()
    async with git.start("fast-import", "--quiet", "--done", "--depth=0", "--date-format=raw", stdin=-1) as process:
        if process.stdin is None:
            raise WalkUnusableError("git has no input")
        answer = asyncio.create_task(_read_answer(process.stdout))
        try:
            process.stdin.write(
                f"commit {ref}\ncommitter turnkeeper <turnkeeper> {number} +0000\ndata 0\ndeleteall\n".encode()
            )
            while isinstance(frame := await reader.frame(), FileFrame):
                await _take_file(process.stdin, reader, frame, taken, limits)
            if frame.why is not None:
                raise WalkUnusableError(text.cut(frame.why, 300)[0])
            if frame.files != taken.files:
                raise WalkUnusableError(f"the walk announced {frame.files} files and sent {taken.files}")
            process.stdin.write(b'ls ""\n\ndone\n')
            await process.stdin.drain()
            process.stdin.close()
        except (BrokenPipeError, ConnectionResetError) as error:
            raise await failure_of(process, "fast-import") from error
        finally:
            if process.returncode is None and not process.stdin.is_closing():
                process.kill()  # it waits for more: what there is of the commit is dropped
            output = await answer
        if await process.wait() != 0:
            raise await failure_of(process, "fast-import")
    if taken.files:
        taken.tree_id = _tree_id(output)
    return taken


def _tree_id(output: bytes) -> str:
    """The answer to `ls ""`: `040000 tree <id> TAB path`."""
    words = output.split(b"\t")[0].split()
    if len(words) != 3 or words[1] != b"tree":
        raise WalkUnusableError("git did not name the tree")
    return words[2].decode("ascii")


async def _take_file(
    git: asyncio.StreamWriter, reader: "_FrameReader", frame: FileFrame, taken: Taken, limits: WalkLimits
) -> None:
    path = _checked_path(frame.path)
    taken.files += 1
    taken.size_bytes += frame.size
    if frame.size < 0 or taken.size_bytes > limits.size_bytes_max:
        raise WalkUnusableError(f"the Workdir holds more than {limits.size_bytes_max} bytes")
    if taken.files > limits.files_max:
        raise WalkUnusableError(f"the Workdir holds more than {limits.files_max} files")
    taken.sizes[path] = frame.size
    git.write(b"M %s inline %s\ndata %d\n" % (frame.mode.encode(), quoted(path), frame.size))
    async for piece in reader.content(frame.size):
        git.write(piece)
        await git.drain()
    git.write(b"\n")


def quoted(path: bytes) -> bytes:
    """A path as fast-import reads it: in double quotes, with everything but plain characters as octal escapes."""
    return b'"' + b"".join(_QUOTED[byte] for byte in path) + b'"'


_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._- ")
_QUOTED: Final = [bytes([byte]) if byte in _PLAIN else b"\\%03o" % byte for byte in range(256)]


def _checked_path(shown: str) -> bytes:
    try:
        path = shown.encode("latin-1")
    except UnicodeEncodeError:
        raise WalkUnusableError("the walk sent a path that is not bytes") from None
    parts = path.split(b"/")
    if len(path) > _PATH_BYTES_MAX or b"\0" in path or any(part in (b"", b".", b"..") for part in parts):
        raise WalkUnusableError("the walk sent a path that is not relative")
    if any(part.lower() == b".git" for part in parts):
        raise WalkUnusableError("the walk sent a path in a .git directory")
    return path


async def _read_answer(stream: asyncio.StreamReader | None) -> bytes:
    """What fast-import says, to its end, and its first line alone."""
    first = b""
    while stream is not None and (part := await stream.read(1 << 16)):
        first = (first + part)[:1024]
    return first.partition(b"\n")[0]


class _Frame(BaseModel):
    t: str


class _FrameReader:
    """Header lines and raw contents out of chunks that are cut anywhere."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._buffer = bytearray()

    async def frame(self) -> FileFrame | EndFrame:
        """The next header. `WalkUnusableError` where the stream ends or holds something else."""
        line = await self._line()
        try:
            kind = _Frame.model_validate_json(line).t
            if kind == "file":
                return FileFrame.model_validate_json(line)
            if kind == "end":
                return EndFrame.model_validate_json(line)
        except ValidationError:
            pass
        raise WalkUnusableError("the walk sent something that is no frame")

    async def content(self, size: int) -> AsyncIterator[bytes]:
        """The next `size` bytes in pieces."""
        left = size
        while left:
            if not self._buffer:
                await self._more()
            piece = bytes(self._buffer[: min(left, _WRITE_BYTES)])
            del self._buffer[: len(piece)]
            left -= len(piece)
            yield piece

    async def _line(self) -> bytes:
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > _HEADER_BYTES_MAX:
                raise WalkUnusableError("the walk sent a header that is too long")
            await self._more()
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    async def _more(self) -> None:
        chunk = await anext(self._chunks, None)
        if chunk is None:
            raise WalkUnusableError("the walk ended early")
        self._buffer += chunk
