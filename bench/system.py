"""A `turnkeeper up` of the bench's own: data directory, port, agent, owner; ended without leaving anything behind."""

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import processes
from turnkeeper.client.owner import OwnerClient, StreamEvent
from turnkeeper.kit.ids import new_id
from turnkeeper.wire.public import NewConversation, RunDetail
from turnkeeper.wire.turn import EventKind

AGENT = "bench"
CAPACITY = 8
"""Trees at once on the host."""
OWNER_ROOM = 4
"""Trees at once of one owner."""
LEDGER = "bench-ledger.jsonl"
READY_WITHIN_S = 180.0
STOP_WITHIN_S = 100.0
CLEAN_WITHIN_S = 60.0


class BenchError(Exception):
    """What was measured cannot be a measurement; the text is for a person."""


@dataclass(frozen=True)
class System:
    """A running product. `started_s`: from the start of the command to its readiness."""

    url: str
    data: Path
    up_pid: int
    pids: dict[str, int]
    client: OwnerClient
    uid: str
    started_s: float

    @property
    def ledger(self) -> Path:
        """Where the agents of all sandboxes note their prompts, as this machine sees it."""
        return self.data / "owners" / self.uid / "workspace" / LEDGER

    @property
    def host_token(self) -> str:
        """The host's token, for a driver that stands in for it."""
        return (self.data / "keys" / "host-token").read_text().strip()

    def new_conversation(self, title: str, agent: str = AGENT) -> str:
        """A fresh conversation in a Workdir of its own; its thread id."""
        new = NewConversation(agent=agent, title=title)
        return self.client.create_conversation(new, idempotency_key=new_id()).thread_id

    def finish_turn(self, run_id: str) -> list[StreamEvent]:
        """Follow the run's stream to its end; `BenchError` unless it completed."""
        events = list(self.client.run_events(run_id))
        return self.checked(run_id, events)

    def checked(self, run_id: str, events: list[StreamEvent]) -> list[StreamEvent]:
        """The events of a run, which must have ended well."""
        end = events[-1].data if events and events[-1].kind is EventKind.END else {}
        if end.get("status") != "completed":
            raise BenchError(f"run {run_id} ended {end.get('status')} ({end.get('error_code')}), not completed")
        return events

    def turn(self, thread_id: str, text: str) -> RunDetail:
        """One whole turn that nobody times."""
        run_id = self.client.submit(thread_id, text, idempotency_key=new_id()).run.id
        self.finish_turn(run_id)
        return self.client.run(run_id)

    def close(self, thread_id: str) -> None:
        """Close the conversation; its sandbox goes, without anybody waiting for it here."""
        self.client.close_conversation(thread_id)

    def sandboxes(self) -> list[int]:
        """The launchers that run, one per sandbox."""
        return [pid for pid in processes.tree(self.up_pid) if processes.role_of(pid) == "launcher"]

    def wait_sandboxes_gone(self) -> None:
        """Until no sandbox is left, so that the next chapter has the machine to itself."""
        wait_until(lambda: not self.sandboxes(), CLEAN_WITHIN_S, "the sandboxes of closed conversations to go")

    def wait_spares(self, count: int) -> None:
        """Until the host has so many spare children that have imported everything (they then use no processor)."""

        def rested() -> bool:
            children = [pid for pid in processes.tree(self.pids["host"]) if processes.role_of(pid) == "child"]
            before = processes.cpu_s(children)
            time.sleep(0.3)
            return len(children) == count and processes.cpu_s(children) == before

        wait_until(rested, CLEAN_WITHIN_S, f"{count} spare children")


def wait_until(is_so: Any, within_s: float, what: str) -> None:
    """Look again and again, with a bound."""
    ends = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > ends:
            raise BenchError(f"waited {within_s:g} s in vain for {what}")
        time.sleep(0.05)


@contextlib.contextmanager
def running_system(parent: Path | None, settings: Mapping[str, str] | None = None) -> Generator[System]:
    """Start it in a fresh directory below `parent` (None: the system's place for temporary files), and end it.

    `settings`: environment variables of the product; all others of it are left out, whoever set them.
    """
    data = Path(tempfile.mkdtemp(prefix="turnkeeper-bench-", dir=parent))
    try:
        with _up(data, settings or {}) as (process, running, started_s):
            key = (data / "keys" / "owner-key").read_text().strip()
            with OwnerClient(running["url"], key) as client:
                system = System(
                    url=running["url"],
                    data=data,
                    up_pid=process.pid,
                    pids=running["pids"],
                    client=client,
                    uid=client.me().uid,
                    started_s=started_s,
                )
                _put_agent(client)
                yield system
                _close_all(system)
    finally:
        _end_leftovers(data)
        shutil.rmtree(data, ignore_errors=True)


def _put_agent(client: OwnerClient) -> None:
    """The ready-made scripted agent, with a ledger that lies in the owner's workspace."""
    definition = dict(client.agent("scripted").definition or {})
    definition |= {"name": AGENT, "title": "Bench", "env": {"SCRIPTED_AGENT_LEDGER": f"/workspace/{LEDGER}"}}
    client.put_agent(AGENT, definition)


def _close_all(system: System) -> None:
    for conversation in system.client.conversations(10_000):
        if conversation.state == "open":
            system.close(conversation.thread_id)
    system.wait_sandboxes_gone()


@contextlib.contextmanager
def _up(data: Path, settings: Mapping[str, str]) -> Generator[tuple["subprocess.Popen[bytes]", dict[str, Any], float]]:
    """The command, what it announced, and how long that took."""
    ours = ("TURNKEEPER_", "AGENT_", "SANDBOX_", "DATABASE_URL")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    if (level := os.environ.get("TURNKEEPER_LOG_LEVEL")) is not None:
        environment["TURNKEEPER_LOG_LEVEL"] = level
    environment |= settings
    command = [sys.executable, "-m", "turnkeeper", "up", "--data", str(data), "--port", "0", "--json"]
    started = time.monotonic()
    process = subprocess.Popen(
        [*command, "--capacity", str(CAPACITY)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    try:
        yield process, _announcement(process), time.monotonic() - started
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _announcement(process: "subprocess.Popen[bytes]") -> dict[str, Any]:
    """The line that says that everything answers."""
    assert process.stdout is not None
    assert process.stderr is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if selector.select(READY_WITHIN_S):
            line = process.stdout.readline()
            if line:
                return json.loads(line)
    process.send_signal(signal.SIGTERM)
    said = process.stderr.read().decode(errors="replace").strip().splitlines()
    raise BenchError(f"`turnkeeper up` did not start: {said[-1] if said else 'it said nothing'}")


def _end_leftovers(data: Path) -> None:
    """Launchers outlive `up` by design: after a bench that failed half-way, their sandboxes are ended here."""
    for record in _records(data):
        launcher = record.get("launcher", {})
        pid, ticks = launcher.get("pid"), launcher.get("start_ticks")
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            if int(fields[19]) == ticks:
                os.kill(pid, signal.SIGKILL)


def _records(data: Path) -> Iterator[dict[str, Any]]:
    for file in data.glob("sandboxes/*/record.json"):
        with contextlib.suppress(OSError, ValueError):
            yield json.loads(file.read_bytes())
