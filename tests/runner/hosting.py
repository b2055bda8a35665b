"""A real host process and its children, for tests."""

import contextlib
import dataclasses
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.driving import FAST
from runner.peers import HOST_TOKEN, Peers
from turnkeeper.domain.settings import Limits
from turnkeeper.kit.clock import system_clock
from turnkeeper.kit.procs import descendants, identify, kill

SCRIPT = Path(__file__).with_name("host_process.py")


def until(condition: Callable[[], Any], what: str, timeout_s: float = 30.0) -> Any:
    """Wait for a fact, looking often; returns it."""
    end = system_clock.monotonic() + timeout_s
    while not (found := condition()):
        assert system_clock.monotonic() < end, f"not within {timeout_s:g} s: {what}"
        pause(0.005)
    return found


def pause(s: float) -> None:
    """Between two looks."""
    threading.Event().wait(s)


@dataclass
class RunningHost:
    """One host process."""

    process: "subprocess.Popen[bytes]"
    data: Path
    name: str

    @property
    def children(self) -> list[int]:
        """Pids of its live child processes."""
        return [child.pid for child in descendants(self.process.pid)]

    @property
    def records(self) -> list[dict[str, Any]]:
        """What it remembers of its children."""
        directory = self.data / "host" / self.name / "children"
        found: list[dict[str, Any]] = []
        for path in directory.glob("*.json"):
            with contextlib.suppress(FileNotFoundError):
                found.append(json.loads(path.read_text()))
        return found

    def wait_spares(self, count: int) -> list[int]:
        """Wait until it has `count` children that wait for a turn."""
        until(lambda: self.log_count("spare_ready") >= count, "spares are ready")
        return self.children

    def logged(self, event: str) -> list[dict[str, Any]]:
        """What the host logged as `event`; a barrier for tests, not an oracle."""
        lines = self.log_path.read_text().splitlines()
        return [json.loads(line) for line in lines if f'"{event}"' in line]

    def log_count(self, event: str) -> int:
        """How often it did."""
        return len(self.logged(event))

    @property
    def log_path(self) -> Path:
        """The host's own log."""
        return self.data / "host.log"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the host alone."""
        self.process.send_signal(number)

    def wait(self, timeout_s: float = 30.0) -> int:
        """Wait for its end; returns its exit status."""
        return self.process.wait(timeout_s)


@contextlib.contextmanager
def running_host(peers: Peers, data: Path, **overrides: Any) -> Generator[RunningHost]:
    """A host that claims from `peers`; whatever is left of it and its children is killed at the end."""
    told: dict[str, Any] = {
        "name": "host-1",
        "token": HOST_TOKEN,
        "control_url": peers.url,
        "provisioner_url": peers.url,
        "data": str(data),
        "capacity": 4,
        "spares": 1,
        "timing": dataclasses.asdict(overrides.pop("timing", FAST)),
        "limits": dataclasses.asdict(overrides.pop("limits", Limits())),
        **overrides,
    }
    with (data / "host.log").open("ab") as log:
        process = subprocess.Popen([sys.executable, str(SCRIPT)], stdin=subprocess.PIPE, stdout=log, stderr=log)
    assert process.stdin is not None
    process.stdin.write(json.dumps(told).encode())
    process.stdin.close()
    host = RunningHost(process, data, told["name"])
    try:
        yield host
    finally:
        for pid in {*host.children, *(record["pid"] for record in host.records)}:
            child = identify(pid)
            if child is not None and b"turnkeeper.runner.child" in Path(f"/proc/{pid}/cmdline").read_bytes():
                kill(child, signal.SIGKILL)
        process.kill()
        process.wait()


def open_descriptors(pid: int) -> dict[int, str]:
    """What a process has open, by number."""
    found: dict[int, str] = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found[int(entry.name)] = str(entry.readlink())
    return found
