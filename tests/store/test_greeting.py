"""The look whether a server serves: what it makes of a real one, and of whatever else may sit on its socket."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from harness.postgres import embedded_at, throw_away
from turnkeeper.kit.sockets import bind_unix
from turnkeeper.store.greeting import NO_SUCH_DATABASE, NotServed, Served, greet


def look(path: Path, database: str = "postgres", user: str = "turnkeeper") -> Served | NotServed | None:
    return greet(path, user=user, database=database, timeout_s=1.0)


def test_a_real_server(ready: Path) -> None:
    server = embedded_at(ready)
    server.start_blocking()
    path = ready / "s" / ".s.PGSQL.5432"
    try:
        assert server.postmaster is not None
        pid = server.postmaster.pid
        assert look(path) == Served(pid)
        assert look(path, "turnkeeper") == Served(pid)
        assert look(path, "nothing") == NotServed(pid, NO_SUCH_DATABASE)
        stranger = look(path, user="postgres")
        assert isinstance(stranger, NotServed)
        assert stranger.sqlstate == "28000"  # pg_hba.conf knows one user
    finally:
        throw_away(server)
    assert look(path) is None


@contextlib.contextmanager
def impostor(directory: Path, serve: Callable[[socket.socket], None]) -> Generator[Path]:
    path = directory / "p.sock"
    with bind_unix(path) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):
                sock, _ = listener.accept()
                with sock:
                    serve(sock)

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield path
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(timeout=5)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"R\0\0\0\x08\0\0\0\0",  # logged in, and then nothing more
        b"Z\0\0\0\x03",  # shorter than its own length
        b"Z\xff\xff\xff\xff",
        b"S\0\0\0\x04" * 1000,  # talks without end
    ],
)
def test_what_is_no_server_is_no_answer(directory: Path, said: bytes) -> None:
    def serve(sock: socket.socket) -> None:
        sock.recv(1024)
        sock.sendall(said)

    with impostor(directory, serve) as path:
        assert look(path) is None


def test_a_silent_one_is_waited_for_in_bounded_time(directory: Path) -> None:
    def serve(sock: socket.socket) -> None:
        while sock.recv(1024):
            pass

    begun = time.monotonic()
    with impostor(directory, serve) as path:
        assert look(path) is None
    assert 0.9 < time.monotonic() - begun < 5


def test_a_password_is_not_given(directory: Path) -> None:
    def serve(sock: socket.socket) -> None:
        sock.recv(1024)
        sock.sendall(b"R\0\0\0\x08\0\0\0\x03")

    with impostor(directory, serve) as path:
        assert isinstance(look(path), NotServed)
