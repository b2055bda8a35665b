"""Commands that a person may paste: with the path of this installation and the options that its data directory and port need."""

import shlex
import shutil
import sys
from pathlib import Path

from turnkeeper.main.paths import DataDirectory, default_data_directory

DEFAULT_URL = "http://127.0.0.1:8420"


def program() -> str:
    """`turnkeeper` where the shell finds this one by it, else how it was called."""
    called = Path(sys.argv[0])
    found = shutil.which("turnkeeper")
    if called.name != "turnkeeper":
        return f"{shlex.quote(sys.executable)} -m turnkeeper"
    return "turnkeeper" if found is not None and Path(found).resolve() == called.resolve() else shlex.quote(str(called))


def command(words: str, data: DataDirectory, url: str) -> str:
    """`turnkeeper WORDS` for this data directory and address."""
    options = "" if data.root == default_data_directory().absolute() else f" --data {shlex.quote(str(data.root))}"
    options += "" if url == DEFAULT_URL else f" --url {url}"
    return f"{program()} {words}{options}"
