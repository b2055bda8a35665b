"""Where `turnkeeper up` keeps things: one data directory, mode 0700, made new or taken over as it is."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from turnkeeper.domain.errors import SettingRefused

_GIVE_WRITABLE = "give a writable one with --data or TURNKEEPER_DATA"


@dataclass(frozen=True)
class DataDirectory:
    """The data directory's parts. Nothing is created by naming it; `make` creates the directories."""

    root: Path

    @property
    def postgres(self) -> Path:
        """The embedded PostgreSQL's data."""
        return self.root / "postgres"

    @property
    def run(self) -> Path:
        """What belongs to running processes: sockets and the lock of `up`."""
        return self.root / "run"

    @property
    def postgres_sockets(self) -> Path:
        """PostgreSQL's socket directory."""
        return self.run / "pg"

    @property
    def provisioner_socket(self) -> Path:
        """Where the provisioner listens under `up`."""
        return self.run / "provisioner.sock"

    @property
    def lock(self) -> Path:
        """Held by the one `up` of this directory."""
        return self.run / "up.lock"

    @property
    def logs(self) -> Path:
        """One file per process."""
        return self.root / "logs"

    @property
    def keys(self) -> Path:
        """Secrets of this installation, one file of mode 0600 each."""
        return self.root / "keys"

    @property
    def signing_key(self) -> Path:
        """The control plane's Ed25519 key (PEM)."""
        return self.keys / "control-signing.pem"

    @property
    def signing_public_keys(self) -> Path:
        """Its public half, as the JSON object `{kid: PEM}`."""
        return self.keys / "control-signing.pub.json"

    @property
    def provisioner_token(self) -> Path:
        """The administrative token of the provisioner (K-01)."""
        return self.keys / "provisioner-token"

    @property
    def host_token(self) -> Path:
        """The token of this machine's host."""
        return self.keys / "host-token"

    @property
    def owner_key(self) -> Path:
        """The API key of the first owner, which the CLI uses on this machine."""
        return self.keys / "owner-key"

    @property
    def hosts(self) -> Path:
        """State of the hosts: the children that each one started."""
        return self.root / "host"

    @property
    def sandboxes(self) -> Path:
        """State of the local sandboxes, one directory each (the provisioner's)."""
        return self.root / "sandboxes"

    def workspace(self, uid: str) -> Path:
        """An owner's workspace."""
        return self.root / "owners" / uid / "workspace"

    def make(self) -> None:
        """Create the directories; refuse one that cannot be written or that others can read."""
        self._make(self.root, f"data directory {self.root} cannot be made")
        if not os.access(self.root, os.W_OK | os.X_OK):
            raise SettingRefused(f"data directory {self.root} is not writable: {_GIVE_WRITABLE}")
        self._require_private()
        for path in (self.run, self.logs, self.keys, self.hosts):
            self._make(path, f"data directory {self.root} takes no directory {path.name}")
        self._require_parts()

    def _make(self, path: Path, failed: str) -> None:
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SettingRefused(f"{failed} ({os.strerror(error.errno or 0)}): {_GIVE_WRITABLE}") from error

    def _require_private(self) -> None:
        """Who named a place of something else, such as /tmp, is not told to close that to its other users."""
        try:
            if not self.root.stat().st_mode & 0o077:
                return
            may_be_ours = self.keys.is_dir() or next(self.root.iterdir(), None) is None
        except OSError as error:
            raise SettingRefused(
                f"data directory {self.root} cannot be read ({os.strerror(error.errno or 0)})"
            ) from error
        raise SettingRefused(
            f"data directory {self.root} is open to other users: chmod 700 {self.root}"
            if may_be_ours
            else f"{self.root} is open to other users and holds other things than a data directory: "
            "give a directory of its own with --data or TURNKEEPER_DATA"
        )

    def make_run(self) -> None:
        """Make the directory of sockets again, where somebody has removed it. `OSError`."""
        self.run.mkdir(mode=0o700, exist_ok=True)

    def _require_parts(self) -> None:
        """A part that is something else or out of reach is named now: later it is a traceback, and a FIFO a wait for ever."""
        written = [self.logs / f"{name}.log" for name in ("up", "control", "provisioner", "host", "postgres")]
        keys = (self.signing_key, self.signing_public_keys, self.provisioner_token, self.host_token, self.owner_key)
        directories = (self.run, self.logs, self.keys, self.hosts, self.postgres, self.postgres_sockets, self.sandboxes)
        wanted = [
            *((path, "a directory", stat.S_ISDIR, os.W_OK | os.X_OK) for path in directories),
            *((path, "a file", stat.S_ISREG, os.W_OK) for path in (*written, self.lock)),
            *((path, "a file", stat.S_ISREG, os.R_OK) for path in keys),
            (self.provisioner_socket, "a socket", stat.S_ISSOCK, os.F_OK),
        ]
        for path, kind, is_kind, access in wanted:
            try:
                mode = path.stat().st_mode
            except FileNotFoundError:
                continue
            except OSError as error:
                raise SettingRefused(f"{path} cannot be used ({os.strerror(error.errno or 0)})") from error
            if not is_kind(mode):
                raise SettingRefused(f"{path} is no {kind.split()[1]}, and {kind} belongs there: move it away")
            if not os.access(path, access):
                raise SettingRefused(f"{path} cannot be {'read' if access == os.R_OK else 'written'} by this user")


def default_data_directory() -> Path:
    """`TURNKEEPER_DATA`, else the user's data home."""
    given = os.environ.get("TURNKEEPER_DATA")
    if given:
        return Path(given)
    data_home = os.environ.get("XDG_DATA_HOME")
    return (Path(data_home) if data_home else Path.home() / ".local" / "share") / "turnkeeper"
