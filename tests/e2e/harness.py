"""The whole product as a user starts it: `turnkeeper up` in a directory of its own, on a free port, spoken to by its APIs.

A test reads facts back by a connection of its own to the product's database, and what the agent itself received from the
scripted agent's ledger, which lies in the owner's workspace. At the end nothing of the data directory may be left running.
"""

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, LiteralString, Self

import psycopg
from psycopg.rows import dict_row

from turnkeeper.client.failures import CallError
from turnkeeper.client.owner import OwnerClient, StreamEvent
from turnkeeper.kit.ids import digest, new_id, new_secret
from turnkeeper.kit.procs import ProcessId, descendants, identify, kill, wait_gone
from turnkeeper.main.paths import DataDirectory
from turnkeeper.main.teardown import end_sandboxes
from turnkeeper.provisioner.backends.local.records import Places, read_record, sandbox_names
from turnkeeper.wire.public import NewConversation, Run, RunDetail
from turnkeeper.wire.turn import EventKind

READY_WITHIN_S = 130.0
WAIT_S = 60.0
STOP_WITHIN_S = 60.0
# A lease that ends soon; interval + timeout stay below it (L-09).
SHORT_LEASE: Mapping[str, str] = {
    "AGENT_LEASE_TTL": "8",
    "AGENT_HEARTBEAT_INTERVAL": "1",
    "AGENT_HEARTBEAT_TIMEOUT": "3",
    "AGENT_HEARTBEAT_RETRY_DELAY": "0.5",
}
LEASE_S, GRACE_S, ROUND_S = 8.0, 2.0, 5.0
ENDED = ("completed", "failed", "cancelled", "interrupted")
SCRIPTED = ["python", "-m", "turnkeeper.agents.scripted"]
HELD = "touch begun; while [ ! -e go ]; do sleep 0.05; done; rm -f begun go; echo let go"
_KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR")


def wait_for(look: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> Any:
    """Poll a fact until it is there (anything true); it is returned. Bounded."""
    end = time.monotonic() + timeout_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < end, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.02)


@dataclass(frozen=True)
class Received:
    """One prompt as the agent itself received it: the only judge of at-most-once."""

    at_s: float
    session: str
    turn: int | None
    pid: int
    text: str


@dataclass
class Turn:
    """One run and everything that its stream said."""

    run: RunDetail
    events: list[StreamEvent] = field(default_factory=list[StreamEvent])

    @property
    def text(self) -> str:
        """What the agent said."""
        return "".join(str(event.data.get("text", "")) for event in self.events if event.kind is EventKind.TEXT)

    def of_session(self) -> str:
        """How the turn came by its session: new, continued or reloaded."""
        sessions = self.of(EventKind.SESSION)
        assert len(sessions) == 1, sessions
        return str(sessions[0]["mode"])

    def of(self, kind: EventKind) -> list[dict[str, Any]]:
        """The data of the events of one kind."""
        return [event.data for event in self.events if event.kind is kind]


class Product:
    """One data directory and the `up` that serves it. `with` it: it is started, and at the end nothing may be left."""

    def __init__(self, env: Mapping[str, str] | None = None, *arguments: str, database_url: str | None = None) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="tk-e2e-"))
        self.root.chmod(0o700)
        self.data = DataDirectory(self.root / "data")
        self.env = dict(env or {})
        self.arguments = arguments
        self.database_url = database_url
        self.port = 0
        self.url = ""
        self.link = ""
        self.pids: dict[str, int] = {}
        self._open: list[str] = []
        self._up: subprocess.Popen[bytes] | None = None
        self._client: OwnerClient | None = None
        self._dsn: str | None = None
        self._database: psycopg.Connection[dict[str, Any]] | None = None

    # ---- starting and ending ----

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def command(self) -> list[str]:
        """What starts it. The second time on the same port, as a user's is: workers that live on know its address."""
        words = [sys.executable, "-m", "turnkeeper", "up", "--json", "--port", str(self.port)]
        return [*words, "--data", str(self.data.root), *self.arguments]

    def environment(self) -> dict[str, str]:
        """A user's environment, without anything of a product that happens to run here."""
        kept = {name: value for name, value in os.environ.items() if name in _KEPT}
        database = {"DATABASE_URL": self.database_url} if self.database_url else {}
        return {**kept, "HOME": str(self.root), "TURNKEEPER_LOG_LEVEL": "debug", **database, **self.env}

    def start(self) -> None:
        """Start `up`, and return when it says that everything is ready."""
        self._close_output()
        errors = (self.root / "up.err").open("ab")
        with errors:
            self._up = subprocess.Popen(
                self.command(), env=self.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
            )
        line = _read_line(self._up, READY_WITHIN_S)
        assert line, f"up did not start: {self.tell()}"
        said = json.loads(line)
        self.url, self.link, self.pids = said["url"], said["link"], said["pids"]
        self.port = int(self.url.rpartition(":")[2])
        self._forget_connections()

    @property
    def up_pid(self) -> int:
        """The process id of `up`."""
        assert self._up is not None
        return self._up.pid

    def kill(self) -> None:
        """SIGKILL `up`, as a crash does; what it started may live on or die, as it will."""
        assert self._up is not None
        self._up.kill()
        self._up.wait()

    def stop(self) -> int:
        """SIGTERM `up`; its exit status."""
        assert self._up is not None
        self._up.terminate()
        return self.wait_ended()

    def wait_ended(self) -> int:
        """The exit status of `up`, which was told to stop."""
        assert self._up is not None
        return self._up.wait(STOP_WITHIN_S)

    def _end(self) -> None:
        try:
            if self._up is not None and self._up.poll() is None:
                status = self.stop()
                assert status == 0, f"up ended with {status}: {self.tell()}"
        finally:
            self._forget_connections()
            if self._up is not None and self._up.poll() is None:
                self._up.kill()
                self._up.wait()
            self._close_output()
            self._end_database()
            complaints = end_sandboxes(self.data).complaints
            left = wait_none_left(self.data.root)
            for process in left:
                kill(process, signal.SIGKILL)
            if not left:
                shutil.rmtree(self.root, ignore_errors=True)
        assert not complaints, complaints
        assert not left, f"processes of {self.root} are left: {left}"

    def _close_output(self) -> None:
        if self._up is not None and self._up.stdout is not None:
            self._up.stdout.close()

    def _end_database(self) -> None:
        """Where `up` was killed, PostgreSQL waits for the next one, which does not come."""
        with contextlib.suppress(OSError, IndexError, ValueError):
            postmaster = identify(int((self.data.postgres / "postmaster.pid").read_text().splitlines()[0]))
            if postmaster is not None:
                kill(postmaster, signal.SIGQUIT)

    def tell(self, lines: int = 40) -> str:
        """The ends of the logs, for whoever reads a failed test."""
        parts: list[str] = []
        for file in [
            self.root / "up.err",
            *sorted(self.data.logs.glob("*.log")),
            *self.data.root.glob("sandboxes/*/*.log"),
        ]:
            with contextlib.suppress(OSError):
                text = file.read_text(errors="replace")
                parts.append(f"--- {file.name}\n" + "\n".join(text.splitlines()[-lines:]))
        return "\n".join(parts)

    # ---- speaking to it ----

    @property
    def client(self) -> OwnerClient:
        """The first owner's client."""
        if self._client is None:
            self._client = OwnerClient(self.url, self.data.owner_key.read_text().strip())
        return self._client

    @property
    def uid(self) -> str:
        """The first owner."""
        return self.client.me().uid

    def _forget_connections(self) -> None:
        if self._client is not None:
            self._client.close()
        if self._database is not None:
            self._database.close()
        self._client = self._database = self._dsn = None

    def other_owner(self) -> tuple[str, OwnerClient]:
        """Another owner, of whom nothing exists yet; the caller closes the client."""
        key, uid = new_secret("tk_"), new_id()
        self.rows("INSERT INTO users (uid, name) VALUES (%s, %s) RETURNING uid", uid, f"other-{uid[-8:]}")
        self.rows(
            "INSERT INTO api_keys (id, uid, name, shown_prefix, key_hash) VALUES (%s, %s, 'k', 'tk_', %s) RETURNING id",
            new_id(), uid, digest(key),
        )  # fmt: skip
        return key, OwnerClient(self.url, key)

    def agent(self, name: str, env: Mapping[str, str] | None = None, **fields: Any) -> str:
        """A variant of the scripted agent, with a ledger of its own."""
        definition = {
            "name": name,
            "command": SCRIPTED,
            "env": {"SCRIPTED_AGENT_LEDGER": f"/workspace/ledger-{name}.jsonl", **(env or {})},
            "can_load": True,
            "can_resume": True,
            **fields,
        }
        self.client.put_agent(name, definition)
        return name

    def conversation(self, agent: str, workdir: str | None = None) -> str:
        """A new conversation's thread id."""
        new = NewConversation(agent=agent, workdir=workdir)
        thread_id = self.client.create_conversation(new, idempotency_key=new_id()).thread_id
        self._open.append(thread_id)
        return thread_id

    def close_conversations(self) -> None:
        """Close what `conversation` made: their sandboxes are deleted soon after."""
        while self._open:
            with contextlib.suppress(CallError):
                self.client.close_conversation(self._open.pop())

    def submit(self, thread_id: str, text: str) -> str:
        """A message; its run's id."""
        return self.client.submit(thread_id, text, idempotency_key=new_id()).run.id

    def turn(self, thread_id: str, text: str) -> Turn:
        """A message, and its run followed to its end."""
        return self.follow(self.submit(thread_id, text))

    def follow(self, run_id: str) -> Turn:
        """The run's stream to its `end`."""
        events = list(self.client.run_events(run_id))
        return Turn(self.client.run(run_id), events)

    def completed(self, thread_id: str, text: str) -> Turn:
        """As `turn`, which must complete."""
        done = self.turn(thread_id, text)
        assert done.run.status == "completed", f"{done.run}\n{self.tell()}"
        return done

    def wait_status(self, run_id: str, *statuses: str, timeout_s: float = WAIT_S) -> Run:
        """The run once it has one of these statuses (default: any that is final)."""
        wanted = statuses or ENDED
        return wait_for(
            lambda: run if (run := self.client.run(run_id)).status in wanted else None,
            f"run {run_id} is {' or '.join(wanted)}",
            timeout_s,
        )

    def hold(self, thread_id: str, workdir: str) -> tuple[str, Path]:
        """A run whose tool runs until the file that is returned is made; returns when the tool runs."""
        begun, go = (self.workspace / workdir / name for name in ("begun", "go"))
        run_id = self.submit(thread_id, f"/run {HELD}")
        wait_for(lambda: begun.exists() or self.client.run(run_id).status in ENDED, "the tool runs")
        assert begun.exists(), f"{self.client.run(run_id)}\n{self.tell()}"
        return run_id, go

    def wait_text(self, run_id: str, text: str) -> None:
        """Return when the agent has said `text` in this run: by then its prompt has arrived."""
        said = ""
        for event in self.client.run_events(run_id):
            said += str(event.data.get("text", "")) if event.kind is EventKind.TEXT else ""
            if text in said:
                return
        raise AssertionError(f"the run ended without {text!r}: {said!r}\n{self.tell()}")

    # ---- what is on this machine ----

    @property
    def workspace(self) -> Path:
        """The first owner's workspace."""
        return self.data.workspace(self.uid)

    def ledger(self, agent: str) -> list[Received]:
        """Every prompt that this variant of the agent has received, in order."""
        file = self.workspace / f"ledger-{agent}.jsonl"
        if not file.exists():
            return []
        found: list[Received] = []
        # Not splitlines(): a prompt may hold U+2028, which that takes for a line's end.
        for line in filter(None, file.read_text().split("\n")):
            entry = json.loads(line)
            found.append(Received(entry["t"] / 1e9, entry["session"], entry["turn"], entry["pid"], entry["text"]))
        return found

    def process(self, name: str) -> ProcessId:
        """`control`, `provisioner` or `host`, as it runs now."""
        words = ["-m", "turnkeeper", name]

        def find() -> ProcessId | None:
            return next((one for one in descendants(self.up_pid) if _words(one.pid)[1:4] == words), None)

        return wait_for(find, f"{name} runs")

    def postmaster(self) -> ProcessId:
        """The embedded PostgreSQL."""
        pid = int((self.data.postgres / "postmaster.pid").read_text().splitlines()[0])
        found = identify(pid)
        assert found is not None
        return found

    def child(self, run_id: str) -> ProcessId:
        """The worker that has this run."""
        for file in (self.data.hosts / "local" / "children").glob("*.json"):
            record = json.loads(file.read_text())
            if record["job"] == run_id:
                return ProcessId(record["pid"], record["start_ticks"])
        raise AssertionError(f"no child has run {run_id}")

    def sandboxes(self) -> dict[str, tuple[ProcessId, ProcessId]]:
        """Launcher and manager (pid 1 inside) of each live sandbox, by its scope's thread id."""
        found: dict[str, tuple[ProcessId, ProcessId]] = {}
        for name in sandbox_names(self.data.sandboxes):
            record = read_record(Places(self.data.sandboxes / name))
            if record is None:  # it is being deleted
                continue
            for process in descendants(record.launcher.pid):
                if _words(process.pid)[2:4] == ["-m", "turnkeeper.sandboxd"]:
                    found[record.shape.scope] = (record.launcher, process)
        return found

    def agents_of_all(self) -> dict[str, list[ProcessId]]:
        """The scripted agents of every live sandbox, by its scope's thread id."""
        return {thread: self._agents_below(launcher) for thread, (launcher, _) in self.sandboxes().items()}

    def agents_running(self, thread_id: str) -> list[ProcessId]:
        """The scripted agents in this conversation's sandbox."""
        return self._agents_below(self.sandboxes()[thread_id][0])

    def tools_running(self, thread_id: str) -> list[ProcessId]:
        """The tools of `hold` in this conversation's sandbox."""
        return self._below(self.sandboxes()[thread_id][0], HELD)

    def _agents_below(self, launcher: ProcessId) -> list[ProcessId]:
        return self._below(launcher, "turnkeeper.agents.scripted")

    @staticmethod
    def _below(launcher: ProcessId, word: str) -> list[ProcessId]:
        # as its second argument: the keeper, which carries the whole command, is not meant
        return [process for process in descendants(launcher.pid) if _words(process.pid)[2:3] == [word]]

    # ---- the database ----

    @property
    def dsn(self) -> str:
        """What the control plane itself was given."""
        if self._dsn is None:
            raw = Path(f"/proc/{self.process('control').pid}/environ").read_bytes()
            pairs = dict(pair.split(b"=", 1) for pair in raw.split(b"\0") if b"=" in pair)
            self._dsn = pairs[b"DATABASE_URL"].decode()
        return self._dsn

    def rows(self, query: LiteralString, *params: object) -> list[dict[str, Any]]:
        """What the database holds."""
        database = self._database
        if database is None or database.closed:
            database = self._database = _connect(self.dsn)
        try:
            return database.execute(query, params).fetchall()
        except psycopg.OperationalError:  # a server that was killed took the connection with it
            database = self._database = _connect(self.dsn)
            return database.execute(query, params).fetchall()

    def row(self, query: LiteralString, *params: object) -> dict[str, Any]:
        """The only row."""
        found = self.rows(query, *params)
        assert len(found) == 1, found
        return found[0]


@contextlib.contextmanager
def product(env: Mapping[str, str] | None = None, *arguments: str) -> Generator[Product]:
    """A running product."""
    with Product(env, *arguments) as running:
        yield running


def _connect(dsn: str) -> psycopg.Connection[dict[str, Any]]:
    return psycopg.Connection[dict[str, Any]].connect(dsn, autocommit=True, row_factory=dict_row)


def command_of(process: ProcessId) -> str:
    """Its command line, for whoever looks for something in it."""
    return " ".join(_words(process.pid)).strip()


def _words(pid: int) -> list[str]:
    """A process's command without the interpreter's `-X` options, which a drill adds."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []
    while words[1:2] == ["-X"]:
        del words[1:3]
    return words


def wait_none_left(data: Path, timeout_s: float = 15.0) -> list[ProcessId]:
    """What still runs of this data directory when the time is over: nothing, if all is well."""
    end = time.monotonic() + timeout_s
    while (found := processes_of(data)) and time.monotonic() < end:
        wait_gone(found[0], 0.2)
    return found


def processes_of(data: Path) -> list[ProcessId]:
    """Every process that names this data directory: in its words, its environment, its directory or an open file."""
    needle = str(data).encode()
    found: list[ProcessId] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        process = identify(int(entry.name))
        if process is not None and _names(entry, needle):
            found.append(process)
    return found


def _names(entry: Path, needle: bytes) -> bool:
    with contextlib.suppress(OSError):
        if needle in (entry / "cmdline").read_bytes() or needle in (entry / "environ").read_bytes():
            return True
        links = [entry / "cwd", *(entry / "fd").iterdir()]
        return any(os.fsencode(link.readlink()).startswith(needle) for link in links)
    return False


def _read_line(process: "subprocess.Popen[bytes]", timeout_s: float) -> bytes:
    """The first line of a process's output; empty where it ends or says nothing in time."""
    said: queue.Queue[bytes] = queue.Queue()
    out = process.stdout
    assert out is not None
    threading.Thread(target=lambda: said.put(out.readline()), daemon=True).start()
    try:
        return said.get(timeout=timeout_s)
    except queue.Empty:
        return b""
