"""Files in places where somebody else writes too.

Paths below a root are opened component by component without following links, so that a link put there by an agent leads
nowhere (F14, K-09). Files of our own are replaced atomically and durably.
"""

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path
from typing import Final

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class UnsafePathError(OSError):
    """A component is missing its meaning: empty, `.`, `..`, absolute, or with a NUL; or a link or no directory is in the way."""


class NotRegularError(OSError):
    """Not a regular file: a link, FIFO, device, socket or directory."""


class TooLargeError(OSError):
    """The file holds more than the caller takes."""


def split_relative(relative: str) -> tuple[str, ...]:
    """The components of a relative path; `UnsafePathError` names what is wrong with it."""
    parts = tuple(relative.split("/"))
    for part in parts:
        if part in ("", ".", "..") or "\0" in part:
            raise UnsafePathError(errno.EINVAL, f"unsafe path component {part!r} in {relative!r}")
    return parts


def open_beneath(root_fd: int, relative: str, flags: int, mode: int = 0o600) -> int:
    """Open `relative` below the directory `root_fd` with `flags`; no component may be a link. The caller closes the result.

    `FileNotFoundError` if it is not there; `UnsafePathError` for a link, or for something that is no directory in the
    middle. A FIFO is opened without waiting where `flags` hold `O_NONBLOCK`.
    """
    *parents, name = split_relative(relative)
    directory = _descend(root_fd, parents)
    try:
        return _open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, directory, mode)
    finally:
        os.close(directory)


def make_dirs_beneath(root_fd: int, relative: str, mode: int = 0o700) -> int:
    """Open the directory `relative` below `root_fd`, creating what is missing; no component may be a link.

    Returns a descriptor of the last one, which the caller closes. Of two creators both succeed.
    """
    directory = os.dup(root_fd)
    try:
        for part in split_relative(relative):
            with contextlib.suppress(FileExistsError):  # somebody was first, or it is a link: the open below decides
                os.mkdir(part, mode, dir_fd=directory)
            below = _open(part, _DIRECTORY, directory)
            os.close(directory)
            directory = below
    except BaseException:
        os.close(directory)
        raise
    return directory


def write_atomic(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace `path` by a file that holds `data`. After the return it survives a power cut; a reader sees old or new."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    temporary = f".{path.name[:100]}.{secrets.token_hex(8)}.new"
    try:
        fd = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory
        )
        try:
            with open(fd, "wb", closefd=True) as file:  # noqa: PTH123 - a descriptor, not a path
                os.fchmod(fd, mode)
                file.write(data)
                file.flush()
                os.fsync(fd)
            os.replace(temporary, path.name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=directory)
            raise
        os.fsync(directory)
    finally:
        os.close(directory)


def read_bounded(path: Path | str, max_bytes: int, *, dir_fd: int | None = None) -> bytes:
    """The contents of a regular file of at most `max_bytes`, never followed through a link and never waited for.

    `path` is a name in `dir_fd` where that is given. Errors: `FileNotFoundError`, `NotRegularError`, `TooLargeError`.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        fd = os.open(path, flags, dir_fd=dir_fd)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV):
            raise NotRegularError(error.errno, f"{os.fspath(path)!r} is not a regular file") from error
        raise
    try:
        return read_regular(fd, max_bytes, os.fspath(path))
    finally:
        os.close(fd)


def read_regular(fd: int, max_bytes: int, name: str = "file") -> bytes:
    """The contents of the open regular file `fd`, from its beginning, with the errors of `read_bounded`."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise NotRegularError(errno.EINVAL, f"{name!r} is not a regular file")
    if status.st_size > max_bytes:
        raise TooLargeError(errno.EFBIG, f"{name!r} holds {status.st_size} bytes; at most {max_bytes} are read")
    parts: list[bytes] = []
    offset = 0
    while part := os.pread(fd, min(1 << 20, max_bytes + 1 - offset), offset):
        parts.append(part)
        offset += len(part)
        if offset > max_bytes:  # it grew while it was read
            raise TooLargeError(errno.EFBIG, f"{name!r} holds more than {max_bytes} bytes")
    return b"".join(parts)


def _descend(root_fd: int, parts: list[str]) -> int:
    directory = os.dup(root_fd)
    try:
        for part in parts:
            below = _open(part, _DIRECTORY, directory)
            os.close(directory)
            directory = below
    except BaseException:
        os.close(directory)
        raise
    return directory


def _open(name: str, flags: int, directory: int, mode: int = 0o600) -> int:
    try:
        return os.open(name, flags, mode, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise UnsafePathError(error.errno, f"{name!r} is a link or no directory") from error
        raise
