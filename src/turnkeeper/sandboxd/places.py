"""Directories and environment of what runs in the sandbox."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from turnkeeper.kit import files
from turnkeeper.sandboxd.journal import relative_to

_PATH_DEFAULT: Final = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True)
class Unfit:
    """Why something cannot be started: one line for the owner of the agent definition."""

    why: str


def check_places(workspace: str, cwd: str, home: str) -> Unfit | None:
    """Both must lie below the workspace, links not followed; the HOME is made where it is missing. Blocks."""
    root = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.close(files.make_dirs_beneath(root, relative_to(workspace, home)))
        relative = "" if cwd == workspace else relative_to(workspace, cwd)
        if relative:
            os.close(files.open_beneath(root, relative, os.O_RDONLY | os.O_DIRECTORY))
    except FileNotFoundError:
        return Unfit(f"cwd {cwd!r} does not exist")
    except OSError as error:
        return Unfit(f"cwd {cwd!r} or home {home!r} cannot be used: {error.strerror}")
    finally:
        os.close(root)
    return None


def environment(
    home: str, env: Mapping[str, str], names: Sequence[str], secrets: Mapping[str, str]
) -> dict[str, str] | Unfit:
    """PATH, HOME, LANG, the definition's own variables and the secrets that it names; nothing else (K-11)."""
    missing = [name for name in names if name not in secrets]
    if missing:
        return Unfit(f"the secret {missing[0]!r} that the agent definition names has no value")
    result = {"PATH": os.environ.get("PATH", _PATH_DEFAULT), "LANG": "C.UTF-8"}
    result.update(env)
    result.update({name: secrets[name] for name in names})
    result["HOME"] = home
    for name, value in result.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            return Unfit(f"the environment variable {name!r} cannot be set")
    return result
