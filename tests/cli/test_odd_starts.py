"""The processes themselves, started by somebody careless and spoken to by somebody hostile."""

import contextlib
import json
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from cli.terminal import environment
from harness.postgres import wait_until
from turnkeeper.services.signer import Signer, new_private_pem

# Everything that could be wrong with what a process inherits, and few descriptors.
CARELESS = """
import os, resource, signal, sys
numbers = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)
for number in numbers:
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
os.execv(sys.executable, [sys.executable, "-m", "turnkeeper", *sys.argv[1:]])
"""
STOP_S = 20.0


@pytest.fixture
def settings(dsn: str, tmp_path: Path) -> dict[str, str]:
    """What control plane, provisioner and host need."""
    key, public = tmp_path / "key.pem", tmp_path / "public.json"
    key.write_bytes(new_private_pem())
    signer = Signer(key.read_bytes())
    public.write_text(json.dumps({signer.kid: signer.public_pem}))
    return {
        **environment(tmp_path),
        "DATABASE_URL": dsn,
        "TURNKEEPER_DATA": str(tmp_path / "data"),
        "TURNKEEPER_SIGNING_KEY_FILE": str(key),
        "TURNKEEPER_SIGNING_PUBLIC_KEYS": str(public),
        "TURNKEEPER_PROVISIONER_TOKEN": "p" * 40,
        "TURNKEEPER_PROVISIONER_URL": "http://127.0.0.1:1",
        "TURNKEEPER_CONTROL_URL": "http://127.0.0.1:1",
        "TURNKEEPER_HOST_TOKEN": "tkh_" + "h" * 40,
    }


@contextlib.contextmanager
def started(name: str, *arguments: str, settings: dict[str, str], log: Path) -> Generator[subprocess.Popen[bytes]]:
    """One process, killed at the end if it still runs."""
    with (
        log.open("wb") as out,
        subprocess.Popen(
            [sys.executable, "-c", CARELESS, name, *arguments],
            env=settings, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
        ) as process,
    ):  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def free_port() -> int:
    """One that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def answers(port: int) -> bool:
    """Whether `/livez` is answered."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        client.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        return client.recv(100).startswith(b"HTTP/1.1 200")
    return False


def descriptors_max(pid: int) -> int:
    """The soft limit that holds for it."""
    return resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]


@pytest.mark.parametrize("name", ["control", "provisioner"])
def test_a_server_answers_through_a_flood_of_half_requests_and_stops_when_told(
    name: str, settings: dict[str, str], tmp_path: Path
) -> None:
    """Started with ignored and blocked signals and few descriptors; then endless heads, and SIGTERM."""
    port, log = free_port(), tmp_path / "log"
    more = ("--unsafe-no-isolation",) if name == "provisioner" else ()
    with started(name, "--listen", f"127.0.0.1:{port}", *more, settings=settings, log=log) as process:
        wait_until(lambda: process.poll() is not None or answers(port), "it answers", 40)
        assert process.poll() is None, log.read_text()
        assert descriptors_max(process.pid) > 256
        with contextlib.ExitStack() as held:
            for _ in range(300):
                half = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
                half.sendall(b"GET / HTTP/1.1\r\nX: ")
            assert answers(port)
            endless = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            with contextlib.suppress(ConnectionError):
                for _ in range(512):
                    endless.sendall(b"a" * 65536)
                pytest.fail("32 MiB of nonsense were taken")
            assert answers(port)
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_S) == 0, log.read_text()
        assert "Traceback" not in log.read_text()


def test_a_host_stops_when_told(settings: dict[str, str], tmp_path: Path) -> None:
    """It has no server; its control plane does not answer, which is no reason not to stop."""
    log = tmp_path / "log"
    with started("host", settings=settings, log=log) as process:
        wait_until(lambda: process.poll() is not None or (tmp_path / "data/host/local/lock").exists(), "it runs", 40)
        assert process.poll() is None, log.read_text()
        wait_until(lambda: descriptors_max(process.pid) > 256, "its limit is raised")
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_S) == 0, log.read_text()
        assert "Traceback" not in log.read_text()
