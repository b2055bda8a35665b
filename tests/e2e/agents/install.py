"""Installs the real agents of the tests into `.cache/agents`, each pinned by a lock that names no host.

    python tests/e2e/agents/install.py [NAME…]

Prints one line for each agent: installed, already there, or skipped and why. Exit status 1 if an installation that
could be tried has failed. What is installed once is kept until its lock or its interpreter changes.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("TURNKEEPER_AGENTS_CACHE") or HERE.parents[2] / ".cache" / "agents")
INSTALL_TIMEOUT_S = 900
PROBE = "import ensurepip, sys, venv; print(sys.version_info[0], sys.version_info[1], sys.base_prefix, sys.executable)"


@dataclass(frozen=True)
class Missing:
    """The agent is not there, or cannot be; `why` is one line."""

    why: str


@dataclass(frozen=True)
class Tool:
    """What an installation needs of the machine: a program, and where its files are."""

    program: str
    prefix: str
    version: str


@dataclass(frozen=True)
class Installed:
    """An installed agent: its command and the directories that a sandbox must bind for it."""

    name: str
    version: str
    command: tuple[str, ...]
    programs: tuple[str, ...]


@dataclass(frozen=True)
class Recipe:
    """How to install one agent. `command` is relative to its folder; `locks` are the files that pin it."""

    name: str
    version: str
    command: tuple[str, ...]
    locks: tuple[str, ...]
    tool: Callable[[], Tool | Missing]
    install: Callable[[Path, Tool], None]

    @property
    def folder(self) -> Path:
        """Where it is installed; the path is absolute and stays, for virtual environments cannot be moved."""
        return CACHE / self.name

    def stamp(self, tool: Tool) -> str:
        """Changes whenever it must be installed anew."""
        digest = hashlib.sha256(f"{self.folder}\n{tool.program}\n{tool.version}\n".encode())
        for lock in self.locks:
            digest.update((HERE / lock).read_bytes())
        return digest.hexdigest()


def find_python() -> Tool | Missing:
    """A Python of at least 3.12 that can make virtual environments."""
    on_path = [shutil.which(name) for name in ("python3.12", "python3.13", "python3.14", "python3")]
    kept = sorted(Path.home().glob(".pyenv/versions/3.1[2-9]*/bin/python"))
    for program in [*filter(None, on_path), *map(str, kept)]:
        found = probe([program, "-c", PROBE])
        if found is None:  # a shim without a version behind it, or a Debian Python without venv
            continue
        major, minor, prefix, executable = found.split(" ", 3)
        if (int(major), int(minor)) >= (3, 12):
            return Tool(executable, prefix, f"{major}.{minor}")
    return Missing("no Python 3.12 or newer with venv on PATH or in ~/.pyenv/versions")


def find_npm() -> Tool | Missing:
    """Node of at least 20 with npm, on Linux x86-64 (which the locks are for)."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return Missing(f"its lock is for Linux x86_64, and this is {sys.platform} {platform.machine()}")
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return Missing("no node and npm on PATH")
    version = (probe([node, "--version"]) or "").removeprefix("v")
    if not version or int(version.partition(".")[0]) < 20:
        return Missing(f"node is {version or 'broken'}, and 20 or newer is needed")
    return Tool(npm, str(Path(node).resolve().parent.parent), version)


def probe(command: list[str]) -> str | None:
    """The output of a command, or None if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def run(command: list[str], cwd: Path) -> None:
    """Run one step of an installation; raises CalledProcessError with its output."""
    subprocess.run(
        command,
        cwd=cwd,
        check=True,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=INSTALL_TIMEOUT_S,
    )


def install_wheels(folder: Path, tool: Tool) -> None:
    """A virtual environment with exactly what the lock lists; no package's own code runs while it is installed."""
    run([tool.program, "-m", "venv", str(folder)], folder)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    lock = str(HERE / f"{folder.name}.lock")
    run([*pip, "--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", lock], folder)


def install_node_modules(folder: Path, tool: Tool) -> None:
    """Exactly what package-lock.json lists; no package's own code runs while it is installed."""
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / folder.name / name, folder / name)
    run([tool.program, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], folder)


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("vibe", "3.0.2", ("bin/vibe-acp",), ("vibe.lock",), find_python, install_wheels),
        # The package with the program that `opencode-ai` chooses on this platform: that one's install script would only
        # link it. The "baseline" build runs on every x86-64.
        Recipe(
            "opencode",
            "1.18.33",
            ("node_modules/opencode-linux-x64-baseline/bin/opencode", "acp"),
            ("opencode/package.json", "opencode/package-lock.json"),
            find_npm,
            install_node_modules,
        ),
        # The last version that was measured on Node 20.
        Recipe(
            "claude",
            "0.49.0",
            ("node_modules/.bin/claude-agent-acp",),
            ("claude/package.json", "claude/package-lock.json"),
            find_npm,
            install_node_modules,
        ),
    )
}


def find(name: str) -> Installed | Missing:
    """The agent as it was installed by this program, or why it is not there."""
    recipe = RECIPES[name]
    try:
        record = json.loads((recipe.folder / "installed.json").read_text())
    except (FileNotFoundError, ValueError):
        return Missing(f"{name} is not installed; run python tests/e2e/agents/install.py {name}")
    command = (str(recipe.folder / recipe.command[0]), *recipe.command[1:])
    return Installed(name, recipe.version, command, tuple(record["programs"]))


def install(recipe: Recipe) -> tuple[str, bool]:
    """Install one agent if that is possible and needed; returns a line for a person and whether all is well."""
    label = f"{recipe.name} {recipe.version}"
    tool = recipe.tool()
    if isinstance(tool, Missing):
        return f"{label}: skipped: {tool.why}", True
    record = recipe.folder / "installed.json"
    stamp = recipe.stamp(tool)
    if record.exists() and json.loads(record.read_text()).get("stamp") == stamp:
        return f"{label}: already there", True
    began = time.monotonic()
    shutil.rmtree(recipe.folder, ignore_errors=True)
    recipe.folder.mkdir(parents=True)
    try:
        recipe.install(recipe.folder, tool)
    except subprocess.CalledProcessError as error:
        lines = [line for line in f"{error.stdout}\n{error.stderr}".splitlines() if line.strip()]
        return f"{label}: failed: {lines[-1] if lines else error}", False
    except subprocess.TimeoutExpired:
        return f"{label}: failed: not done after {INSTALL_TIMEOUT_S} s", False
    programs = [str(recipe.folder), *([] if tool.prefix == "/usr" else [tool.prefix])]
    record.write_text(json.dumps({"stamp": stamp, "programs": programs}) + "\n")  # last: from here on it is there
    return f"{label}: installed with {tool.version} in {time.monotonic() - began:.0f} s", True


def main(arguments: list[str]) -> int:
    """Install the agents that are named, or all of them."""
    parser = argparse.ArgumentParser(description="Install the real agents of the tests into .cache/agents.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(RECIPES)}; all if none is named")
    names = parser.parse_args(arguments).names or list(RECIPES)
    for name in names:
        if name not in RECIPES:
            parser.error(f"{name!r} is none of {', '.join(RECIPES)}")
    CACHE.mkdir(parents=True, exist_ok=True)
    well = True
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second run waits for the first and then finds all there
        for name in names:
            line, good = install(RECIPES[name])
            print(line, flush=True)
            well = well and good
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
