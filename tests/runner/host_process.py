"""A host as a process of its own, started by tests: `python host_process.py`, its settings as JSON on stdin."""

import json
import sys
from pathlib import Path
from typing import Any

from turnkeeper.domain.errors import SettingRefused
from turnkeeper.domain.settings import Limits, Timing
from turnkeeper.kit.log import configure
from turnkeeper.runner.host import run_host
from turnkeeper.runner.settings import HostSettings


def main() -> int:
    """Runs until it is told to stop."""
    told: dict[str, Any] = json.load(sys.stdin)
    configure("host", "debug")
    timing, limits = Timing(**told.pop("timing")), Limits(**told.pop("limits"))
    child_log = Path(told["data"]) / "child.log"
    data = Path(told.pop("data"))
    try:
        return run_host(HostSettings(**told, data=data, child_log=child_log, timing=timing, limits=limits))
    except SettingRefused as refused:  # said as the command line says it
        sys.exit(f"error: {refused}")


if __name__ == "__main__":
    sys.exit(main())
