"""Brings a data directory and its database to the state that the processes need, in a process of its own that ends.

`python -m turnkeeper.main.bootstrap` is started by `up`, reads `DATABASE_URL` and `TURNKEEPER_DATA`, and prints one line of
JSON: `{"uid": …, "link_secret": …}`. Doing it again changes nothing but
the one-time link, which is new each time.
"""

import asyncio
import json
import sys
from pathlib import Path

from turnkeeper.domain.errors import SettingRefused
from turnkeeper.kit.files import write_atomic
from turnkeeper.kit.ids import new_secret
from turnkeeper.main.environment import Environment
from turnkeeper.main.paths import DataDirectory
from turnkeeper.main.ready_made import ready_made_definitions
from turnkeeper.services import agents, bootstrap
from turnkeeper.services.signer import Signer, new_private_pem
from turnkeeper.store.errors import DatabaseError
from turnkeeper.store.migrate import upgrade
from turnkeeper.store.pool import open_database
from turnkeeper.store.tx import Database

OWNER_NAME = "owner"
HOST_NAME = "local"


def make_keys(data: DataDirectory) -> None:
    """Secrets of this installation, each made once: a file that exists is kept as it is."""
    for file, prefix in ((data.provisioner_token, "tkp_"), (data.host_token, "tkh_"), (data.owner_key, "tk_")):
        if not file.exists():
            write_atomic(file, new_secret(prefix).encode() + b"\n")
    if not data.signing_key.exists():
        write_atomic(data.signing_key, new_private_pem())
    signer = Signer(data.signing_key.read_bytes())
    write_atomic(data.signing_public_keys, json.dumps({signer.kid: signer.public_pem}).encode())


async def _ensure_owner(db: Database, data: DataDirectory) -> str:
    """The first owner, with the key that is stored here; where that one was revoked, with a new one."""
    uid = await bootstrap.ensure_owner(db, OWNER_NAME, data.owner_key.read_text().strip())
    if not await bootstrap.opens(db, data.owner_key.read_text().strip()):
        write_atomic(data.owner_key, new_secret("tk_").encode() + b"\n")
        await bootstrap.ensure_owner(db, OWNER_NAME, data.owner_key.read_text().strip())
    return uid


async def fill_database(dsn: str, data: DataDirectory) -> dict[str, str]:
    """Owner, key, host token, definitions and a one-time link."""
    await asyncio.to_thread(upgrade, dsn)
    async with open_database(dsn, min_size=1, max_size=1) as db:
        uid = await _ensure_owner(db, data)
        await bootstrap.publish_signing_key(db, Signer(data.signing_key.read_bytes()))
        await bootstrap.ensure_host_token(db, HOST_NAME, data.host_token.read_text().strip())
        for definition in ready_made_definitions():
            await agents.put_if_new(db, definition)
        return {"uid": uid, "link_secret": await bootstrap.new_login_link(db, uid)}


def main() -> int:
    """The exit status; what went wrong is one line on stderr."""
    environment = Environment.of_process()
    data = DataDirectory(Path(environment.text("TURNKEEPER_DATA")))
    try:
        make_keys(data)
        made = asyncio.run(fill_database(environment.text("DATABASE_URL"), data))
    except (SettingRefused, DatabaseError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - the line that `up` shows
        return 1
    print(json.dumps(made))  # noqa: T201 - read by `up` over a pipe
    return 0


if __name__ == "__main__":
    sys.exit(main())
