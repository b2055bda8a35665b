"""Whether an agent's programs would be found in a sandbox of this machine, for whoever lists what can run here."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from turnkeeper.provisioner.backends.local import bubblewrap


def missing(command: str, programs: Sequence[str], *, isolated: bool) -> str | None:
    """One line saying what is missing; None where nothing is. `command` is the first word of the agent's command."""
    absent = [path for path in programs if not Path(path).exists()]
    if absent:
        return f"{absent[0]} does not exist on this machine"
    path = Path(command)
    if path.is_absolute():
        if not os.access(path, os.X_OK) or path.is_dir():
            return f"{command} is no program on this machine"
        shown = (*bubblewrap.SYSTEM_PATHS, *bubblewrap.product_paths(), *programs)
        seen = not isolated or any(path.is_relative_to(one) for one in shown)
        return None if seen else f"{command} is not in the sandbox: name it, or its directory, in programs"
    search = bubblewrap.environment("")["PATH"] if isolated else None
    return None if shutil.which(command, path=search) else f"{command} is not installed on this machine"
