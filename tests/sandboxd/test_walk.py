"""The walk of a Workdir: what is sent, what is not, and what an agent cannot do to it."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sandboxd.manager import Manager, ManagerOptions, until
from turnkeeper.sandboxd import walker
from turnkeeper.wire.sandbox_start import SandboxLimits
from turnkeeper.wire.walk import EndFrame, FileFrame


@dataclass
class Walked:
    """A walk as a reader sees it; `end` is None where the stream broke off."""

    files: dict[bytes, tuple[str, bytes]]
    end: EndFrame | None


def read_frames(data: bytes) -> Walked:
    """Parse a stream of frames; each file once."""
    files: dict[bytes, tuple[str, bytes]] = {}
    position = 0
    while position < len(data):
        line_end = data.index(b"\n", position)
        header = json.loads(data[position:line_end])
        position = line_end + 1
        if header["t"] == "end":
            assert position == len(data)
            return Walked(files, EndFrame.model_validate(header))
        frame = FileFrame.model_validate(header)
        path = frame.path.encode("latin-1")
        assert path not in files
        files[path] = (frame.mode, data[position : position + frame.size])
        assert len(files[path][1]) == frame.size
        position += frame.size
    return Walked(files, None)


async def walk(manager: Manager, workdir: str = "project") -> Walked:
    """`GET /v1/snapshot`."""
    response = await manager.http.get("/v1/snapshot", params={"workdir": workdir})
    assert response.status_code == 200, response.text
    return read_frames(response.content)


async def test_what_is_sent(manager: Manager) -> None:
    """Proves: D-08. Regular files and links; `.git` directories, FIFOs, sockets and devices are left out; nothing hangs."""
    root = manager.workdir
    (root / "a.txt").write_bytes(b"hello\n")
    (root / "run.sh").write_bytes(b"#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "sub/deep").mkdir(parents=True)
    (root / "sub/deep/large").write_bytes(os.urandom(3_000_000))
    (root / "link").symlink_to("/etc/passwd")
    (root / "dangling").symlink_to("nowhere")
    (root / "dirlink").symlink_to("/etc")
    (root / ".git").mkdir()
    (root / ".git/config").write_text("[core]\n\tfsmonitor = touch /tmp/owned\n")
    (root / "sub/.git").write_text("gitdir: elsewhere\n")
    (root / "empty").mkdir()
    os.mkfifo(root / "fifo")
    os.mknod(root / "null", 0o600 | 0o020000, os.makedev(1, 3))
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(root / "socket"))
        walked = await walk(manager)
    assert walked.end is not None
    assert (walked.end.why, walked.end.files, walked.end.skipped) == (None, 7, 4)
    modes = {path: mode for path, (mode, _) in walked.files.items()}
    assert modes == {
        b"a.txt": "100644",
        b"run.sh": "100755",
        b"sub/deep/large": "100644",
        b"link": "120000",
        b"dangling": "120000",
        b"dirlink": "120000",
        b"sub/.git": "100644",
    }
    assert walked.files[b"link"][1] == b"/etc/passwd"
    assert walked.files[b"sub/deep/large"][1] == (root / "sub/deep/large").read_bytes()
    await until(lambda: manager.below() == [])


NAMES = [
    b"v2..v3",
    b"x;touch y",
    b"%2e%2e",
    b"~",
    b"\xff\xfe",
    b"a\nb",
    b"\xf0\x9f\x98\x80",
    b"-rf",
    b"n" * 255,
    b'"q"\\',
    b" ",
]


async def test_names(manager: Manager) -> None:
    """Case: F10, F14. Any name that a file can have arrives as the bytes that it is."""
    for name in NAMES:
        manager.workdir.joinpath(os.fsdecode(name)).write_bytes(name)
    walked = await walk(manager)
    assert {path: content for path, (_, content) in walked.files.items()} == {name: name for name in NAMES}


@pytest.mark.parametrize("workdir", ["", "..", "/etc", "project/../../..", "project//x", ".", "a\0b", "project/"])
async def test_workdir_that_is_no_path(manager: Manager, workdir: str) -> None:
    """Case: F14. Refused, and the field is named."""
    response = await manager.http.get("/v1/snapshot", params={"workdir": workdir})
    assert (response.status_code, response.json()["code"]) == (422, "invalid_request")
    assert "workdir" in response.json()["detail"]


async def test_workdir_that_is_a_link_or_missing(manager: Manager) -> None:
    """Case: F14. A link in place of the Workdir, or of a directory above it, is not followed."""
    (manager.workspace / "out").symlink_to("/etc")
    (manager.workspace / "up").symlink_to(manager.workspace)
    for workdir in ("out", "up/project", "missing", "%2e%2e", "~"):
        walked = await walk(manager, workdir)
        assert walked.files == {}
        assert walked.end is not None
        assert walked.end.why is not None


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (SandboxLimits(snapshot_files_max=10), "more than 10 files"),
        (SandboxLimits(snapshot_bytes_max=5000), "more than 5000 bytes"),
        (SandboxLimits(snapshot_timeout_s=0.001), "longer than 0.001 s"),
    ],
)
async def test_bounds(tmp_path: Path, limits: SandboxLimits, why: str) -> None:
    """Proves: D-08. Files, bytes and time are bounded, and the last frame says which bound it was."""
    async with Manager(tmp_path, ManagerOptions(limits=limits)) as manager:
        for number in range(200):
            (manager.workdir / str(number)).write_bytes(b"x" * 100)
        walked = await walk(manager)
        assert walked.end is not None
        assert why in str(walked.end.why)
        assert walked.end.size_bytes <= 20_000


async def test_sparse_file_is_bounded(manager: Manager) -> None:
    """Proves: D-08. Forty gigabytes that take no room do not take time either."""
    with (manager.workdir / "sparse").open("wb") as file:
        file.truncate(40 * 1024**3)
    async with asyncio.timeout(10):
        walked = await walk(manager)
    assert walked.end is not None
    assert "more than 200000000 bytes" in str(walked.end.why)


async def test_nesting_is_bounded(manager: Manager) -> None:
    """Proves: D-08. A thousand directories in each other neither exhaust descriptors nor the stack."""
    fd = os.open(manager.workdir, os.O_RDONLY)
    for _ in range(1000):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    walked = await walk(manager)
    assert walked.end is not None
    assert "nested deeper" in str(walked.end.why)
    await (await asyncio.create_subprocess_exec("rm", "-rf", str(manager.workdir / "d"))).wait()


async def test_hostile_renames(manager: Manager) -> None:
    """Proves: D-08, Case: F14. Directories and files that are swapped for links while they are walked lead nowhere."""
    outside = manager.workspace / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    for number in range(30):
        (manager.workdir / f"d{number}").mkdir()
        (manager.workdir / f"d{number}" / "secret").write_text("public")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for number in range(30):
                place, aside = manager.workdir / f"d{number}", manager.workspace / f"aside{number}"
                try:
                    place.rename(aside)
                    place.symlink_to(outside)
                    place.unlink()
                    aside.rename(place)
                except OSError:
                    return

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        for _ in range(10):
            walked = await walk(manager)
            assert walked.end is not None
            contents = {path: content for path, (mode, content) in walked.files.items() if mode != "120000"}
            assert set(contents.values()) <= {b"public"}
    finally:
        stop.set()
        swapping.join()


def test_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    """Proves: D-08. Frames stay whole: what is declared is what is sent, and a file that became shorter makes no snapshot."""
    (tmp_path / "w").mkdir()
    large = tmp_path / "w/large"
    large.write_bytes(b"x" * 5_000_000)
    command = [sys.executable, "-I", "-S", walker.__file__, str(tmp_path), "w", "10", "100000000", "20"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        begun = process.stdout.read(1000)  # the walker now waits for us, with most of the file before it
        os.truncate(large, 100_000)
        walked = read_frames(begun + process.stdout.read())
    assert len(walked.files[b"large"][1]) == 5_000_000
    assert walked.end is not None
    assert "shorter" in str(walked.end.why)


@pytest.mark.parametrize("ended_by", ["stop", "take"])
async def test_any_stop_or_take_ends_a_walk(manager: Manager, ended_by: str) -> None:
    """Proves: D-08, D-03. The stream ends without its last frame, which is no snapshot; nothing waits for it."""
    worker = manager.activation()
    (await worker.take()).ok()
    for number in range(20):
        (manager.workdir / str(number)).write_bytes(b"x" * 8_000_000)
    async with manager.http.stream("GET", "/v1/snapshot?workdir=project") as response:
        stream: AsyncIterator[bytes] = response.aiter_bytes()
        begun = await anext(stream)
        other: Any = worker.call("POST", "/v1/stop") if ended_by == "stop" else worker.next().take()
        (await other).ok()
        assert manager.below() == []
        with pytest.raises(Exception, match=r"."):  # noqa: PT012 - the body is cut off, or ends too early for its frames
            async for part in stream:
                begun += part
            assert read_frames(begun).end is not None


async def test_client_that_goes_away_ends_the_walk(manager: Manager) -> None:
    """Proves: D-08. A walk whose reader is gone is ended."""
    for number in range(20):
        (manager.workdir / str(number)).write_bytes(b"x" * 8_000_000)
    async with manager.http.stream("GET", "/v1/snapshot?workdir=project") as response:
        await anext(response.aiter_bytes())
        assert manager.below() != []
    await until(lambda: manager.below() == [])
