"""Files below a root that somebody else writes to, and files of our own."""

import ctypes
import os
import stat
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from turnkeeper.kit.files import (
    NotRegularError,
    TooLargeError,
    UnsafePathError,
    make_dirs_beneath,
    open_beneath,
    read_bounded,
    split_relative,
    write_atomic,
)


def names(directory: Path | str) -> list[str]:
    return sorted(entry.name for entry in Path(directory).iterdir())


@pytest.fixture
def root(tmp_path: Path) -> Generator[int]:
    (tmp_path / "root").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    before = names("/proc/self/fd")
    fd = os.open(tmp_path / "root", os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)
    assert names("/proc/self/fd") == before, "a descriptor was left open"


@pytest.mark.parametrize(
    "path", ["..", ".", "", "/etc", "a/../../b", "a//b", "a/", "a/./b", "a\0b", "../outside/secret"]
)
def test_hurtful_paths(root: int, path: str) -> None:
    """Case: F14. Refused before anything is opened or made."""
    with pytest.raises(UnsafePathError, match="unsafe path component"):
        open_beneath(root, path, os.O_RDONLY)
    with pytest.raises(UnsafePathError):
        make_dirs_beneath(root, path)
    assert os.listdir(root) == []


@pytest.mark.parametrize("path", ["v2..v3", "x;touch y", "%2e%2e", "~", "...", "項目/コード"])
def test_legitimate_paths(root: int, path: str) -> None:
    """Case: F14. Nothing is decoded or expanded."""
    os.close(make_dirs_beneath(root, path))
    os.close(open_beneath(root, f"{path}/file", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    assert os.listdir(root) == [split_relative(path)[0]]


def test_links_are_followed_nowhere(root: int, tmp_path: Path) -> None:
    """Case: F14. Proves: K-09 (the walker). A link as any component leads nowhere, whoever made it."""
    base = tmp_path / "root"
    (base / "link").symlink_to(tmp_path / "outside")
    (base / "dir").mkdir()
    (base / "dir" / "file-link").symlink_to(tmp_path / "outside" / "secret")
    (base / "dangling").symlink_to(tmp_path / "outside" / "new")
    for path in ("link/secret", "dir/file-link", "dangling", "link"):
        with pytest.raises(UnsafePathError):
            open_beneath(root, path, os.O_RDWR | os.O_CREAT)
    for path in ("link", "link/new", "dangling", "dir/file-link"):
        with pytest.raises(UnsafePathError):
            make_dirs_beneath(root, path)
    assert names(tmp_path / "outside") == ["secret"]
    assert (tmp_path / "outside" / "secret").read_text() == "secret"


def test_a_file_in_the_middle(root: int, tmp_path: Path) -> None:
    """Something that is no directory is no way."""
    (tmp_path / "root" / "file").write_text("x")
    with pytest.raises(UnsafePathError):
        open_beneath(root, "file/x", os.O_RDONLY)
    with pytest.raises(UnsafePathError):
        make_dirs_beneath(root, "file/x")
    with pytest.raises(FileNotFoundError):
        open_beneath(root, "none/x", os.O_RDONLY)
    with pytest.raises(FileNotFoundError):
        open_beneath(root, "none", os.O_RDONLY)


def test_directories_are_made_with_their_mode(root: int, tmp_path: Path) -> None:
    """Missing ones only; what exists keeps its mode and contents; the last one's descriptor comes back."""
    (tmp_path / "root" / "a").mkdir(mode=0o755)
    fd = make_dirs_beneath(root, "a/b/c", 0o700)
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=fd))
    os.close(fd)
    assert (tmp_path / "root" / "a" / "b" / "c" / "file").exists()
    assert stat.S_IMODE((tmp_path / "root" / "a").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "root" / "a" / "b").stat().st_mode) == 0o700
    os.close(make_dirs_beneath(root, "a/b/c"))


def test_a_swapped_component_never_leads_outside(root: int, tmp_path: Path) -> None:
    """Case: F14. While somebody swaps a directory for a link in a tight loop, nothing outside is opened or made."""
    base, stop, opened, refused = tmp_path / "root", threading.Event(), 0, 0
    (base / "real").mkdir()
    (base / "evil").symlink_to(tmp_path / "outside")

    libc = ctypes.CDLL(None, use_errno=True)

    def swap() -> None:
        while not stop.is_set():
            exchanged = libc.renameat2(-100, bytes(base / "real"), -100, bytes(base / "evil"), 2)  # RENAME_EXCHANGE
            assert exchanged == 0, os.strerror(ctypes.get_errno())

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(2000):
            for attempt in (
                lambda: make_dirs_beneath(root, "real/made"),
                lambda: open_beneath(root, "real/secret", os.O_RDONLY),
            ):
                try:
                    fd = attempt()
                except (UnsafePathError, FileNotFoundError):
                    refused += 1
                    continue
                opened += 1
                assert Path(f"/proc/self/fd/{fd}").readlink().is_relative_to(base)
                os.close(fd)
    finally:
        stop.set()
        thread.join(10)
    assert names(tmp_path / "outside") == ["secret"]
    assert opened > 100
    assert refused > 100, "the swap was never met: the test proves nothing"


def test_two_creators_both_succeed(root: int) -> None:
    """The one who comes second finds the directory."""
    start, failures = threading.Barrier(4), list[BaseException]()

    def make() -> None:
        start.wait(10)
        try:
            for n in range(50):
                os.close(make_dirs_beneath(root, f"a{n}/b/c"))
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []


def test_write_atomic(tmp_path: Path) -> None:
    """Exactly the mode asked for, whatever the umask; replaced whole; nothing left beside it."""
    path = tmp_path / "key"
    before = os.umask(0o077)
    try:
        write_atomic(path, b"one")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        write_atomic(path, b"two", mode=0o644)
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
    finally:
        os.umask(before)
    assert path.read_bytes() == b"two"
    assert names(tmp_path) == ["key"]


def test_write_atomic_replaces_a_link_and_not_its_target(tmp_path: Path) -> None:
    """A link in our place is replaced, never written through."""
    (tmp_path / "target").write_text("kept")
    (tmp_path / "key").symlink_to(tmp_path / "target")
    write_atomic(tmp_path / "key", b"new")
    assert (tmp_path / "target").read_text() == "kept"
    assert not (tmp_path / "key").is_symlink()


def test_a_failed_write_leaves_the_old_file_alone(tmp_path: Path) -> None:
    """No half file and no temporary one, whatever failed."""
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "inside").write_text("x")
    with pytest.raises(OSError, match=r"directory"):
        write_atomic(tmp_path / "dir", b"new")
    assert names(tmp_path) == ["dir"]
    with pytest.raises(FileNotFoundError):
        write_atomic(tmp_path / "none" / "file", b"new")


def test_readers_see_old_or_new(tmp_path: Path) -> None:
    """Never a mixture, never nothing."""
    path, stop, seen = tmp_path / "file", threading.Event(), set[bytes]()
    values = (b"a" * 100_000, b"b" * 50_000)
    write_atomic(path, values[0])

    def read() -> None:
        while not stop.is_set():
            seen.add(read_bounded(path, 1 << 20))

    thread = threading.Thread(target=read)
    thread.start()
    for n in range(50):
        write_atomic(path, values[n % 2])
    stop.set()
    thread.join(10)
    assert seen <= set(values)


def test_read_bounded(tmp_path: Path) -> None:
    """At the limit, above it, and by name in an open directory."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    assert read_bounded(path, 100) == b"x" * 100
    with pytest.raises(TooLargeError, match="100 bytes; at most 99"):
        read_bounded(path, 99)
    with pytest.raises(FileNotFoundError):
        read_bounded(tmp_path / "none", 1)
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert read_bounded("file", 100, dir_fd=fd) == b"x" * 100
    finally:
        os.close(fd)


def test_a_file_without_a_size_is_bounded_too() -> None:
    """A file of /proc says size 0 and has more; one that grows is the same."""
    assert len(read_bounded("/proc/self/stat", 10_000)) > 20
    with pytest.raises(TooLargeError, match="more than 20"):
        read_bounded("/proc/self/stat", 20)


def test_nothing_but_regular_files_is_read(tmp_path: Path) -> None:
    """Proves: D-08 (the reader). A FIFO does not hang, a device, socket, directory and link are refused."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dir").mkdir()
    (tmp_path / "link").symlink_to("/etc/passwd")
    for path in (tmp_path / "fifo", tmp_path / "dir", tmp_path / "link", Path("/dev/zero")):
        with pytest.raises(NotRegularError, match="not a regular file"):
            read_bounded(path, 1 << 20)
