"""The walker: reads a Workdir without following anything and writes it to stdout as the frames of `wire.walk`.

A program of its own (`python -I -S walker.py WORKSPACE WORKDIR FILES_MAX BYTES_MAX SECONDS_MAX`), below a keeper like
everything that touches what an agent left behind (D-08). Directories are opened one by one from their parent's descriptor
without following links, files likewise and without waiting for a FIFO, and what was opened is looked at again: a name that
is swapped in between leads nowhere. `.git` directories, sockets, FIFOs and devices are left out. The last frame is `end`.
"""

import errno
import json
import os
import stat
import sys
import time  # noqa: TID251 - a program of its own, which imports nothing of the product

DEPTH_MAX = 300
SMALL_BYTES = 1024 * 1024
READ_BYTES = 256 * 1024
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
GONE = (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.ENODEV)


class GaveUpError(Exception):
    """The walk cannot be completed; the text says why."""


class Output:
    """Frames on stdout, in writes of a fair size."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = bytearray()

    def put(self, data: bytes) -> None:
        """Add bytes."""
        self._buffer += data
        if len(self._buffer) >= READ_BYTES:
            self.flush()

    def frame(self, **fields: object) -> None:
        """Add a header line."""
        self.put(json.dumps(fields, separators=(",", ":")).encode("ascii") + b"\n")

    def flush(self) -> None:
        """Write what is there."""
        view = memoryview(bytes(self._buffer))
        self._buffer.clear()
        while view:
            view = view[os.write(self._fd, view) :]


class Walk:
    """One walk and its bounds."""

    def __init__(self, output: Output, files_max: int, bytes_max: int, seconds_max: float) -> None:
        self._output = output
        self._files_max = files_max
        self._bytes_max = bytes_max
        self._seconds_max = seconds_max
        self._end = time.monotonic() + seconds_max
        self._entries = 0
        self.files = 0
        self.size_bytes = 0
        self.skipped = 0

    def directory(self, fd: int, prefix: bytes, depth: int = 0) -> None:
        """Walk the open directory `fd`, whose path ends in `/` unless it is the root."""
        if depth > DEPTH_MAX:
            raise GaveUpError(f"directories are nested deeper than {DEPTH_MAX}")
        names: list[bytes] = []
        with os.scandir(fd) as entries:
            for entry in entries:
                self._entries += 1
                self._check(self._entries > 4 * self._files_max + 1000)
                names.append(os.fsencode(entry.name))
        for name in sorted(names):
            self._check(self.files > self._files_max)
            self._entry(fd, name, prefix + name, depth)

    def _check(self, too_many: bool) -> None:
        if too_many:
            raise GaveUpError(f"there are more than {self._files_max} files")
        if time.monotonic() > self._end:
            raise GaveUpError(f"it took longer than {self._seconds_max:g} s")

    def _entry(self, parent: int, name: bytes, path: bytes, depth: int) -> None:
        try:
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                self._subdirectory(parent, name, path, depth)
            elif stat.S_ISLNK(status.st_mode):
                self._send(path, "120000", os.readlink(name, dir_fd=parent))
            elif stat.S_ISREG(status.st_mode):
                self._file(parent, name, path)
            else:
                self.skipped += 1
        except OSError as error:
            if error.errno not in GONE:
                shown = path[-200:].decode("utf-8", "backslashreplace")
                raise GaveUpError(f"{shown!r} cannot be read: {os.strerror(error.errno or 0)}") from None
            self.skipped += 1  # it was removed, or swapped for something else, since it was listed

    def _subdirectory(self, parent: int, name: bytes, path: bytes, depth: int) -> None:
        if name == b".git":
            self.skipped += 1
            return
        fd = os.open(name, DIRECTORY, dir_fd=parent)
        try:
            self.directory(fd, path + b"/", depth + 1)
        finally:
            os.close(fd)

    def _file(self, parent: int, name: bytes, path: bytes) -> None:
        fd = os.open(name, FILE, dir_fd=parent)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                self.skipped += 1
                return
            mode = "100755" if status.st_mode & 0o100 else "100644"
            if status.st_size <= SMALL_BYTES:
                self._send(path, mode, read_up_to(fd, SMALL_BYTES))
            else:
                self._large(fd, path, mode, status.st_size)
        finally:
            os.close(fd)

    def _account(self, path: bytes, mode: str, size: int) -> None:
        self.size_bytes += size
        if self.size_bytes > self._bytes_max:
            raise GaveUpError(f"there are more than {self._bytes_max} bytes")
        self.files += 1
        self._check(self.files > self._files_max)
        self._output.frame(t="file", path=path.decode("latin-1"), mode=mode, size=size)

    def _send(self, path: bytes, mode: str, content: bytes) -> None:
        self._account(path, mode, len(content))
        self._output.put(content)

    def _large(self, fd: int, path: bytes, mode: str, size: int) -> None:
        """Exactly `size` bytes follow their header, also where the file is made shorter meanwhile; then it is no snapshot."""
        self._account(path, mode, size)
        left = size
        while left and (data := os.read(fd, min(READ_BYTES, left))):
            self._output.put(data)
            left -= len(data)
            self._check(too_many=False)
        if left:
            while left:
                filler = bytes(min(READ_BYTES, left))
                self._output.put(filler)
                left -= len(filler)
            raise GaveUpError("a file was made shorter while it was read")


def read_up_to(fd: int, max_bytes: int) -> bytes:
    """What the file holds, at most so much of it: whatever it has become since it was looked at, the frame is right."""
    parts: list[bytes] = []
    left = max_bytes
    while left and (data := os.read(fd, left)):
        parts.append(data)
        left -= len(data)
    return b"".join(parts)


def open_workdir(workspace: str, workdir: str) -> int:
    """The Workdir's descriptor, opened component by component; OSError."""
    fd = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in workdir.split("/"):
        if part in ("", ".", ".."):
            raise OSError(errno.EINVAL, "not a relative path")
        below = os.open(part, DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    return fd


def main(arguments: "list[str]") -> int:
    """Write the frames; the exit status says nothing that the last frame does not say."""
    workspace, workdir = arguments[0], arguments[1]
    output = Output(1)
    walk = Walk(output, int(arguments[2]), int(arguments[3]), float(arguments[4]))
    why = None
    try:
        walk.directory(open_workdir(workspace, workdir), b"")
    except GaveUpError as error:
        why = str(error)
    except OSError as error:
        why = f"the Workdir cannot be read: {os.strerror(error.errno or 0)}"
    output.frame(t="end", files=walk.files, size_bytes=walk.size_bytes, skipped=walk.skipped, why=why)
    output.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
