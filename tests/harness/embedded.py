"""What the tests of the embedded PostgreSQL share."""

import contextlib
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psycopg

from turnkeeper.kit.procs import ProcessId, identify

SUPERVISOR = """
import sys, threading
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from harness.postgres import embedded_at
server = embedded_at(Path(sys.argv[1]))
server.start_blocking()
print(server.postmaster.pid, flush=True)
threading.Event().wait()
"""


def run(url: str, statement: str, *, autocommit: bool = True) -> list[tuple[Any, ...]]:
    """Run one statement; its rows."""
    with psycopg.connect(url, autocommit=autocommit) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


@contextlib.contextmanager
def supervised(directory: Path) -> Generator[tuple["subprocess.Popen[str]", ProcessId]]:
    """A supervisor process with its server below `directory`, and the server's postmaster. The supervisor is killed at the end."""
    tests = Path(__file__).parent.parent
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(directory), str(tests)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        postmaster = identify(int(process.stdout.readline()))
        assert postmaster is not None
        yield process, postmaster
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
