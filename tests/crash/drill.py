"""A product whose processes fail by a plan, and what a scenario does with it.

The plan is the file of `kit.failpoint`; this side writes who fails where and lets paused processes go on. Everything that a
scenario asks of the product is asked again until it is answered, as a good client does: parts of it are dead at times.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import psycopg

from crash.watch import Watch
from e2e.harness import Product, Received
from turnkeeper.client.failures import CallError, ClientError
from turnkeeper.domain.history import History
from turnkeeper.domain.run import LIVE
from turnkeeper.kit import failpoint
from turnkeeper.kit.failpoint import Mode, Phase, Point
from turnkeeper.kit.ids import new_id
from turnkeeper.kit.procs import identify, kill
from turnkeeper.wire.public import NewConversation

T = TypeVar("T")

LEASE_S = 8.0
TIMES = {
    "AGENT_LEASE_TTL": f"{LEASE_S:g}",
    "AGENT_HEARTBEAT_INTERVAL": "1",
    "AGENT_HEARTBEAT_TIMEOUT": "2",
    "AGENT_HEARTBEAT_RETRY_DELAY": "0.5",
    "AGENT_EXECUTION_TIMEOUT": "60",
}
PAUSE_S = LEASE_S + 2.0
"""Longer than a lease: whoever was paused finds it gone."""
ALWAYS_S = 5.0
"""So long a point fails always; then it is mended, as an operator would."""
ANSWER_WITHIN_S = 60.0
AGENT = "drill"
TICKS = 5
BEGUN_TRIES = 3
LOOK_S = 0.02


@dataclass(frozen=True)
class Cell:
    """One failure: where, on which side, how, and whether once or for `ALWAYS_S`."""

    point: Point
    phase: Phase
    mode: Mode
    once: bool = True

    def __str__(self) -> str:
        return f"{self.point}-{self.phase}-{self.mode}-{'once' if self.once else 'always'}"


class Plan:
    """The plan's writer, and the one who lets paused processes go on."""

    def __init__(self, file: Path, managers: Callable[[], list[int]]) -> None:
        """`managers`: the pids of the sandbox managers that run, for a paused pid 1 of a sandbox."""
        self._file = file
        self._managers = managers
        self._arms: dict[str, Mode] = {}
        self._hits: dict[str, int] = {}
        self._reached: set[tuple[str, str]] = set()
        self._stopped = threading.Event()
        self._number = 0
        self._read_bytes = 0
        self._thread = threading.Thread(target=self._watch, name="plan", daemon=True)
        file.touch(0o600)
        self._thread.start()

    def close(self) -> None:
        """End the watching."""
        self._stopped.set()
        self._thread.join()

    def arm(self, cell: Cell) -> str:
        """Have it fail from now on; the name of the arm."""
        self._number += 1
        name = str(self._number)
        self._arms[name] = cell.mode
        times = "once" if cell.once else "always"
        self._write(f"arm {name} {cell.point} {cell.phase} {cell.mode} {times}")
        return name

    def disarm(self, name: str) -> None:
        """It fails no more."""
        self._write(f"disarm {name}")

    def hits(self, name: str) -> int:
        """How often it has failed."""
        return self._hits.get(name, 0)

    def forget(self) -> None:
        """Every process notes again what it reaches."""
        self._write("forget")
        self._reached.clear()

    @property
    def reached(self) -> set[tuple[Point, Phase]]:
        """Where processes have come since `forget`."""
        return {(Point(point), Phase(phase)) for point, phase in self._reached}

    def _write(self, line: str) -> None:
        with self._file.open("a") as file:
            file.write(f"{line}\n")

    def _watch(self) -> None:
        rest = b""
        while not self._stopped.wait(LOOK_S):
            data = self._file.read_bytes()[self._read_bytes :]
            self._read_bytes += len(data)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                match line.decode().split(" "):
                    case ["hit", name, pid]:
                        self._hits[name] = self._hits.get(name, 0) + 1
                        if self._arms.get(name) is Mode.PAUSE:
                            threading.Thread(target=self._pause, args=(name, int(pid)), daemon=True).start()
                    case ["reached", point, phase]:
                        self._reached.add((point, phase))
                    case _:
                        pass

    def _pause(self, name: str, pid: int) -> None:
        """Let a stopped process go on when the pause is over. A manager stands still by us: pid 1 cannot stop itself."""
        stopped = self._managers() if pid == 1 else [pid]
        for one in stopped if pid == 1 else ():
            _signal(one, signal.SIGSTOP)
        self._stopped.wait(PAUSE_S)
        for one in stopped:
            _signal(one, signal.SIGCONT)
        if pid == 1:
            self._write(f"go {name}")


def _signal(pid: int, number: int) -> None:
    process = identify(pid)
    if process is not None:
        kill(process, signal.Signals(number))


class DrillProduct(Product):
    """The whole product with a plan, and leases that end soon."""

    def __init__(self) -> None:
        super().__init__(TIMES)
        self.plan = Plan(self.root / "plan", self._manager_pids)
        self.watch = Watch(self.agents_of_all)
        self.watch.start()
        self.recorded: History | None = None
        """What the database held when the last cell was judged."""

    def command(self) -> list[str]:
        """As a drill's: the interpreter's option is the one way to arm it."""
        python, *words = super().command()
        return [python, "-X", f"{failpoint.OPTION}={self.root / 'plan'}", *words]

    def _manager_pids(self) -> list[int]:
        return [manager.pid for _, manager in self.sandboxes().values()]

    def _end(self) -> None:
        self.plan.close()
        self.watch.close()
        super()._end()


@dataclass
class Drill:
    """One cell: a product, what fails, and what the scenario did. `marks` are the texts by which its turns are known."""

    product: DrillProduct
    threads: list[str] = field(default_factory=list[str])
    marks: dict[str, str] = field(default_factory=dict[str, str])
    """By run."""

    def conversation(self, agent: str = AGENT) -> str:
        """A new conversation in a Workdir of its own."""
        key, name = new_id(), f"w-{new_id()}"
        client = self.product.client
        new = NewConversation(agent=agent, workdir=name)
        made = persist(lambda: client.create_conversation(new, idempotency_key=key), "a conversation is made")
        self.threads.append(made.thread_id)
        return made.thread_id

    def submit(self, thread_id: str, more: str = "") -> str:
        """A message whose tool ticks into the Workdir, so that two writers at once would show; its run."""
        mark, key = f"mark-{new_id()}", new_id()
        ticks = f"for i in $(seq {TICKS}); do echo {mark} >> ticks; sleep 0.1; done"
        text = f"/run {ticks}" + (f"\n{more}" if more else "")
        run_id = persist(
            lambda: self.product.client.submit(thread_id, text, idempotency_key=key).run.id, "a message is taken"
        )
        self.marks[run_id] = mark
        return run_id

    def begun(self) -> str:
        """A conversation with a turn behind it; a busy machine may cost one or two of them."""
        while len(self.threads) < BEGUN_TRIES:
            thread = self.conversation()
            run_id = self.submit(thread)
            self.wait_ended(run_id)
            if self.status(run_id) == "completed":
                return thread
        raise AssertionError(f"no first turn completes\n{self.product.tell()}")

    def try_submit(self, thread_id: str) -> str | None:
        """As `submit`; None where the conversation is over by then."""
        try:
            return self.submit(thread_id)
        except AssertionError:
            state = self.product.row("SELECT state FROM conversations WHERE thread_id = %s", thread_id)["state"]
            if state == "open":
                raise
            return None

    def ticks(self, thread_id: str) -> list[str]:
        """What the tools of this conversation have written."""
        workdir = self.product.row("SELECT workdir FROM conversations WHERE thread_id = %s", thread_id)["workdir"]
        with contextlib.suppress(FileNotFoundError):
            return (self.product.workspace / workdir / "ticks").read_text().split()
        return []

    def status(self, run_id: str) -> str:
        """From the database itself, for the control plane may be away."""
        return str(self.product.row("SELECT status FROM runs WHERE id = %s", run_id)["status"])

    def wait_ended(self, *run_ids: str, timeout_s: float = 90.0) -> None:
        """Until all of them are terminal."""
        waiting = set(run_ids)
        end = time.monotonic() + timeout_s
        while waiting:
            waiting = {run_id for run_id in waiting if self.status(run_id) in (*LIVE, "pending")}
            assert time.monotonic() < end, f"not ended: {waiting}\n{self.product.tell()}"
            time.sleep(LOOK_S if waiting else 0)

    def wait_received(self, run_id: str, timeout_s: float = 30.0) -> bool:
        """Until the agent has received this run's prompt, or the run has ended without; whether it was received."""
        end = time.monotonic() + timeout_s
        while not self.received(run_id):
            if self.status(run_id) not in (*LIVE, "pending") or time.monotonic() > end:
                return False
            time.sleep(LOOK_S)
        return True

    def received(self, run_id: str) -> list[Received]:
        """This run's prompts as the agent got them."""
        mark = self.marks[run_id]
        return [entry for agent in AGENTS for entry in self.product.ledger(agent) if mark in entry.text]

    def cancel(self, run_id: str) -> None:
        """Ask it to stop."""
        persist(lambda: self.product.client.cancel(run_id), "a cancel is taken")

    def close(self, thread_id: str) -> None:
        """Close the conversation."""
        persist(lambda: self.product.client.close_conversation(thread_id), "a conversation is closed")


AGENTS = (AGENT, "drill-setup", "drill-ephemeral")


def define_agents(product: DrillProduct) -> None:
    """The scripted agent with a ledger; one whose setup fails; one whose runtime is deleted after each turn."""
    product.agent(AGENT)
    product.agent("drill-setup", setup=[["/bin/sh", "-c", "sleep 0.2; exit 3"]])
    product.agent("drill-ephemeral", runtime_policy="ephemeral")


def persist(ask: Callable[[], T], what: str) -> T:
    """Ask until it is answered. A refusal for good is an error of the scenario's."""
    end = time.monotonic() + ANSWER_WITHIN_S
    while True:
        try:
            return ask()
        except CallError as error:
            refused = isinstance(error, ClientError) and error.status < 500 and error.status not in (408, 429)
            if refused or time.monotonic() > end:
                raise AssertionError(f"{what}: {error}") from error
        time.sleep(0.1)


@contextlib.contextmanager
def failing(product: DrillProduct, *cells: Cell) -> Generator[list[str]]:
    """Within the block each of `cells` fails; one that fails always is mended after `ALWAYS_S`. The names of the arms."""
    plan = product.plan
    names = [plan.arm(cell) for cell in cells]
    mend = threading.Timer(ALWAYS_S, lambda: [plan.disarm(name) for name in names])
    if any(not cell.once for cell in cells):
        mend.start()
    try:
        yield names
    finally:
        mend.cancel()
        for name in names:
            plan.disarm(name)


def ready(product: DrillProduct) -> None:
    """Until the product says that it is ready again."""
    end = time.monotonic() + ANSWER_WITHIN_S
    while True:
        with contextlib.suppress(CallError, psycopg.Error, OSError):
            product.client.me()
            if product.rows(
                "SELECT 1 FROM hosts WHERE state = 'ready' AND last_heartbeat_at > now() - interval '15 s'"
            ):
                return
        assert time.monotonic() < end, f"the product does not come back\n{product.tell()}"
        time.sleep(0.1)


def seed() -> int:
    """Which cells the short suite takes; set by `CRASH_SEED`."""
    return int(os.environ.get("CRASH_SEED", "1"))
