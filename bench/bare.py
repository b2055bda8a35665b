"""What the same server can do with one-row updates alone: `pgbench`, in a database of its own, with the same durability."""

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from bench.leases import control_environment
from bench.system import BenchError, System
from turnkeeper.store.errors import DatabaseRefused
from turnkeeper.store.pginstall import environment, find_installation

DATABASE = "bench_bare"
_SCRIPT = "\\set row random(1, :rows)\nUPDATE bare SET renewed_at = clock_timestamp() WHERE id = :row;\n"
_TPS = re.compile(r"^tps = ([0-9.]+)", re.MULTILINE)
_LATENCY = re.compile(r"^latency average = ([0-9.]+) ms", re.MULTILINE)
_TIMEOUT_S = 120


@dataclass(frozen=True)
class Bare:
    """The measured rate."""

    updates_per_s: float
    latency_ms: float


def find_pgbench() -> list[str] | None:
    """The command: the embedded server's own, else the system's. None: there is none."""
    try:
        installation = find_installation()
    except DatabaseRefused:
        installation = None
    if installation is not None and (installation.bin / "pgbench").is_file():
        return installation.command("pgbench")
    found = shutil.which("pgbench")
    return None if found is None else [found]


class BareUpdates:
    """One table of as many rows as there are live leases, with nothing but a key and a time."""

    def __init__(self, system: System, command: list[str], rows: int) -> None:
        self._dsn = control_environment(system)["DATABASE_URL"]
        self._command = command
        self._rows = rows

    def make(self) -> None:
        """The database and its table."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {DATABASE}")
        with psycopg.connect(make_conninfo(self._dsn, dbname=DATABASE), autocommit=True) as connection:
            connection.execute("CREATE TABLE bare (id integer PRIMARY KEY, renewed_at timestamptz NOT NULL)")
            connection.execute("INSERT INTO bare SELECT n, now() FROM generate_series(1, %s) n", (self._rows,))
            connection.execute("VACUUM ANALYZE bare")

    def measure(self, connections: int, seconds: int) -> Bare:
        """Prepared statements, each a transaction of its own, on so many connections."""
        given = conninfo_to_dict(self._dsn)
        place = [f"--{name}={given[key]}" for name, key in (("host", "host"), ("port", "port"), ("username", "user"))]
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "update.sql"
            script.write_text(_SCRIPT)
            load = [
                f"--client={connections}",
                f"--jobs={min(connections, 2)}",
                f"--time={seconds}",
                f"--define=rows={self._rows}",
            ]
            done = subprocess.run(
                [*self._command, *place, "--no-vacuum", "--protocol=prepared", *load, f"--file={script}", DATABASE],
                env=environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        rate, latency = _TPS.search(done.stdout), _LATENCY.search(done.stdout)
        if done.returncode != 0 or rate is None or latency is None:
            said = (done.stderr.strip() or "it said nothing").splitlines()
            raise BenchError(f"pgbench failed: {said[-1]}")
        return Bare(round(float(rate[1]), 1), float(latency[1]))

    def drop(self) -> None:
        """The database goes."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
