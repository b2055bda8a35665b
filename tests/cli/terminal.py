"""Runs the command line as a person does: a process of its own, whose output and exit status are all that there is."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Never what a developer has set: keys, addresses and databases of a product that happens to run.
_KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR")


@dataclass(frozen=True)
class Ran:
    """What one command did."""

    status: int
    out: str
    err: str

    @property
    def error_lines(self) -> list[str]:
        """The lines on stderr."""
        return self.err.splitlines()

    def one_line(self) -> str:
        """The one line that a failing command says."""
        assert len(self.error_lines) == 1, self.err
        assert "Traceback" not in self.err
        return self.error_lines[0]


def environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """A clean environment whose home is `home`."""
    kept = {name: value for name, value in os.environ.items() if name in _KEPT}
    return {**kept, "HOME": str(home), **(extra or {})}


def turnkeeper(
    *arguments: str,
    home: Path,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
    timeout_s: float = 55.0,
    python: tuple[str, ...] = (),
) -> Ran:
    """Run `turnkeeper ARGUMENTS` to its end. `python`: options of the interpreter."""
    done = subprocess.run(
        [sys.executable, *python, "-m", "turnkeeper", *arguments],
        env=environment(home, env),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)
