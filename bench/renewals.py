"""Lease renewals per second through the HTTP API, beside bare one-row updates of the same server in the same run.

Thousands of attempts are live; a driver in a process of its own renews one after the other over as many connections as the
row says, each with one request on its way. Beside each row `pgbench` updates one row a transaction, right before, over the
same number of connections or as many as PostgreSQL admits. With two replicas, a second control plane stands beside the
first one, with half of the connections each.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from bench import processes
from bench.bare import Bare, BareUpdates, find_pgbench
from bench.leases import LiveLease, control_environment, end_leases, make_leases, renewed
from bench.report import Chapter, Target
from bench.stats import Summary
from bench.system import BenchError, System, wait_until
from turnkeeper.main.processes import PARENT_ENV

RATIO_MIN = 0.3
RATE_MIN = 3334.0
"""100,000 live leases, each renewed every 30 s."""
BARE_CONNECTIONS_MAX = 48
"""Of `pgbench`: beside the control planes' own, what PostgreSQL admits here. More make its updates no faster."""

_COLUMNS = (
    *(
        "control planes",
        "connections",
        "renewals/s",
        "p50 ms",
        "p99 ms",
        "CPU ms/renewal: control",
        "postgres",
        "driver",
    ),
    *("pgbench updates/s", "ratio"),
)
_READY_S = 60.0
_STOP_S = 20.0


@dataclass(frozen=True)
class Load:
    """How much is measured. `seconds`: of each row, and of `pgbench` beside it."""

    leases: int
    connections: tuple[int, ...]
    seconds: int


def measure_renewals(system: System, load: Load) -> Chapter:
    """One row for each number of connections with one control plane, then with two."""
    title = f"Lease renewals per second through the HTTP API ({load.leases} live leases)"
    chapter = Chapter("renewals", title, _COLUMNS)
    chapter.numbers |= {"live_leases": load.leases, "by_control_planes": {}}
    leases = make_leases(system, load.leases)
    pgbench = find_pgbench()
    if pgbench is None:
        missing = "pgbench is not installed (Debian: postgresql-contrib): the rate of bare updates is left out"
        chapter.numbers["left_out"] = missing
        print(missing, file=sys.stderr)
    try:
        with contextlib.ExitStack() as stack:
            bare = None if pgbench is None else stack.enter_context(_bare(system, pgbench, load.leases))
            _measure(chapter, system, [system.url], [system.pids["control"]], leases, load, bare)
            url, pid = stack.enter_context(_second_control(system))
            _measure(chapter, system, [system.url, url], [system.pids["control"], pid], leases, load, bare)
        if renewed(system) != load.leases:
            raise BenchError("not every live lease was renewed: what was measured were no renewals")
    finally:
        end_leases(system)
    _add_targets(chapter, load)
    return chapter


def _measure(
    chapter: Chapter, system: System, urls: list[str], control: list[int], leases: Sequence[LiveLease], load: Load,
    bare: BareUpdates | None,
) -> None:  # fmt: skip
    for url in urls:
        _drive([url], leases, 8, 0)  # untimed: statements are prepared, and every token has been looked up once
    rows = chapter.numbers["by_control_planes"][str(len(urls))] = {}
    for connections in load.connections:
        beside = None if bare is None else bare.measure(min(connections, BARE_CONNECTIONS_MAX), load.seconds)
        rows[str(connections)] = _row(chapter, system, urls, control, leases, connections, load.seconds, beside)


def _row(
    chapter: Chapter, system: System, urls: list[str], control: list[int], leases: Sequence[LiveLease], connections: int,
    seconds: int, beside: Bare | None,
) -> dict[str, Any]:  # fmt: skip
    before = (processes.cpu_s(control), _postgres_s(system))
    done = _drive(urls, leases, connections, seconds)
    after = (processes.cpu_s(control), _postgres_s(system))
    count = int(done["renewals"])
    spent_s = [after[0] - before[0], after[1] - before[1], float(done["cpu_s"])]
    each_ms = [round(one * 1000 / count, 3) for one in spent_s]
    per_s, latency = round(count / done["took_s"], 1), Summary.of(done["latency_ms"])
    ratio = None if beside is None else round(per_s / beside.updates_per_s, 3)
    shown = ("-", "-") if beside is None else (f"{beside.updates_per_s:.0f}", f"{ratio:.2f}")
    numbers = (str(len(urls)), str(connections), f"{per_s:.0f}", f"{latency.p50:.2f}", f"{latency.p99:.2f}")
    chapter.rows.append((*numbers, *(f"{one:.3f}" for one in each_ms), *shown))
    return {
        "renewals_per_s": per_s,
        "latency_ms": latency.as_json(),
        "cpu_ms_per_renewal": dict(zip(("control", "postgres", "driver"), each_ms, strict=True)),
        "bare_updates_per_s": None if beside is None else beside.updates_per_s,
        "ratio": ratio,
    }


def _add_targets(chapter: Chapter, load: Load) -> None:
    """Of the best number of control planes, over the most connections: each worker has one of its own."""
    most = str(load.connections[-1])
    best = max((rows[most] for rows in chapter.numbers["by_control_planes"].values()), key=_rate)
    chapter.targets.append(Target("renewals per second", _rate(best), RATE_MIN, "/s", at_least=True))
    if best["ratio"] is not None:
        chapter.targets.append(Target("renewals per bare update", best["ratio"], RATIO_MIN, "", at_least=True))


def _rate(row: dict[str, Any]) -> float:
    return float(row["renewals_per_s"])


def _postgres_s(system: System) -> float:
    return processes.cpu_s(pid for pid in processes.tree(system.up_pid) if processes.role_of(pid) == "postgres")


def _drive(urls: Sequence[str], leases: Sequence[LiveLease], connections: int, seconds: int) -> dict[str, Any]:
    order = {
        "urls": urls,
        "connections": connections,
        "seconds": seconds,
        "leases": [(lease.job, lease.token, lease.generation) for lease in leases],
    }
    done = subprocess.run(
        [sys.executable, "-m", "bench.renewer"], input=json.dumps(order), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BenchError(
            f"the driver of renewals failed: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}"
        )
    return json.loads(done.stdout)


@contextlib.contextmanager
def _bare(system: System, pgbench: list[str], rows: int) -> Generator[BareUpdates]:
    bare = BareUpdates(system, pgbench, rows)
    bare.make()
    try:
        yield bare
    finally:
        bare.drop()


@contextlib.contextmanager
def _second_control(system: System) -> Generator[tuple[str, int]]:
    """A replica with the settings of the first; its URL and pid."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=128) as listening,
        (system.data / "logs" / "bench.log").open("ab") as log,
    ):
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-m", "turnkeeper", "control", "--listen", f"fd:{listening.fileno()}"],
            env=control_environment(system) | {PARENT_ENV: str(os.getpid())},
            pass_fds=(listening.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        wait_until(lambda: _answers(url, process, system), _READY_S, "a second control plane")
        yield url, process.pid
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(url: str, process: "subprocess.Popen[bytes]", system: System) -> bool:
    if process.poll() is not None:
        said = (system.data / "logs" / "bench.log").read_text().splitlines() or ["it said nothing"]
        raise BenchError(f"a second control plane ended with status {process.returncode}: {said[-1]}")
    parts = urlsplit(url)
    with contextlib.suppress(OSError), socket.create_connection((parts.hostname, parts.port), 1) as asked:
        asked.sendall(f"GET /readyz HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode())
        return asked.recv(64).startswith(b"HTTP/1.1 200")
    return False
