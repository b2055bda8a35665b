"""Unix sockets under short and long paths."""

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from turnkeeper.kit.sockets import ADDRESS_BYTES_MAX, bind_unix, connect_unix, peer_credentials, unix_address


def names(directory: Path | str) -> list[str]:
    return sorted(entry.name for entry in Path(directory).iterdir())


def deep(tmp_path: Path) -> Path:
    directory = tmp_path / ("d" * 100) / ("e" * 100)
    directory.mkdir(parents=True)
    return directory / "manager.sock"


def exchange(path: Path) -> bytes:
    server = bind_unix(path)
    with server:
        accepted: list[bytes] = []

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                accepted.append(connection.recv(10))

        thread = threading.Thread(target=serve)
        thread.start()
        with connect_unix(path, timeout_s=5) as client:
            client.sendall(b"hello")
        thread.join(5)
    return accepted[0]


def test_long_paths_work(tmp_path: Path) -> None:
    """Facts: paths over 107 bytes fail; bind and connect go through /proc/self/fd/N."""
    path = deep(tmp_path)
    assert len(os.fsencode(path)) > ADDRESS_BYTES_MAX
    with pytest.raises(OSError, match="too long"), socket.socket(socket.AF_UNIX) as plain:
        plain.bind(str(path))
    before = names("/proc/self/fd")
    assert exchange(path) == b"hello"
    assert names("/proc/self/fd") == before


def test_short_paths_are_used_as_they_are(tmp_path: Path) -> None:
    """And at exactly 107 bytes."""
    path = Path("/tmp") / f"tk-{os.getpid()}-{'x' * 107}"[: 107 - len("/tmp/")]
    assert len(os.fsencode(path)) == ADDRESS_BYTES_MAX
    try:
        with unix_address(path) as address:
            assert address == str(path)
        assert exchange(path) == b"hello"
    finally:
        path.unlink(missing_ok=True)


def test_a_name_that_is_too_long_is_told(tmp_path: Path) -> None:
    """The directory may be deep, the name may not."""
    with pytest.raises(OSError, match="name is too long"), unix_address(tmp_path / ("x" * 120)):
        pass


def test_mode_and_replacement_of_a_dead_socket(tmp_path: Path) -> None:
    """The mode is exact whatever the umask; a file that nobody listens on is replaced."""
    path = deep(tmp_path)
    before = os.umask(0)
    try:
        bind_unix(path).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    bind_unix(path, mode=0o660).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


def test_a_live_listener_is_never_taken_over(tmp_path: Path) -> None:
    """Who comes second is refused, and the first one goes on; a file of another kind is refused as well."""
    path = tmp_path / "s"
    with bind_unix(path), pytest.raises(OSError, match="in use"):
        bind_unix(path)
    (tmp_path / "file").write_text("kept")
    with pytest.raises(OSError, match="in use"):
        bind_unix(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "kept"


def test_nobody_there(tmp_path: Path) -> None:
    """The usual errors, and no socket left open (filterwarnings makes a leak fail)."""
    with pytest.raises(FileNotFoundError):
        connect_unix(tmp_path / "none", timeout_s=1)
    bind_unix(tmp_path / "dead").close()
    with pytest.raises(ConnectionRefusedError):
        connect_unix(tmp_path / "dead", timeout_s=1)


def test_peer_credentials() -> None:
    """Who is at the other end, by the kernel."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = peer_credentials(ours)
        assert (peer.pid, peer.uid, peer.gid) == (os.getpid(), os.getuid(), os.getgid())
