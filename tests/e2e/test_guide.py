"""The commands of the guide's pages, run as they are shown: each must succeed, and print what the page shows after it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli.terminal import environment
from e2e.harness import Product

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide"
MARK = "--- command"

pytestmark = pytest.mark.timeout(180)


def commands(page: str) -> list[tuple[str, str]]:
    """Each command of the page's console blocks with the output that is shown after it; empty where none is."""
    found: list[tuple[str, str]] = []
    for block in re.findall(r"```console\n(.*?)```", (GUIDE / page).read_text(), re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line.removeprefix("$ "), ""))
            else:
                command, shown = found[-1]
                found[-1] = (command, f"{shown}{line}\n")
    return found


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="curl and jq are not installed")
def test_the_http_page_says_what_happens(product: Product) -> None:
    """One shell runs them all, in order, and stops at the first that fails."""
    steps = commands("http-api.md")
    assert len(steps) > 10
    lines = [f"{command}\necho '{MARK}'" for command, _ in steps]
    script = "set -eo pipefail\n" + "\n".join(lines).replace("http://127.0.0.1:8420", product.url)
    env = environment(product.root, {"TURNKEEPER_URL": product.url, "TURNKEEPER_DATA": str(product.data.root)})
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=150, check=False)
    said = done.stdout.split(f"{MARK}\n")
    assert done.returncode == 0, f"{steps[len(said) - 1][0]}: {said[-1]}\n{done.stderr}"
    for (command, shown), printed in zip(steps, said, strict=False):
        assert not shown or printed == shown, command
    assert "event: end\n" in done.stdout
