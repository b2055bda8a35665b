"""What an installation needs before anybody can ask for anything. Doing it again changes nothing but the link."""

from turnkeeper.domain.errors import InvariantViolation
from turnkeeper.kit.ids import digest, new_id
from turnkeeper.services import sessions
from turnkeeper.services.keys import insert_key
from turnkeeper.services.signer import Signer
from turnkeeper.store import host_tokens, keys, signing_keys, users
from turnkeeper.store.tx import Database, Tx

KEY_NAME = "first key"


async def ensure_owner(db: Database, name: str, key: str) -> str:
    """The uid of the user `name`, an administrator, who can use `key` unless it was revoked."""

    async def work(tx: Tx) -> str:
        row = await users.insert_user(tx, uid=new_id(), name=name, role="admin", language="en")
        row = row or await users.user_by_name(tx, name)
        if row is None:
            raise InvariantViolation(f"user {name} is neither new nor there")
        known = {one.shown_prefix for one in await keys.list_keys(tx, row.uid)}
        if not any(key.startswith(prefix) for prefix in known):
            await insert_key(tx, row.uid, KEY_NAME, key)
        return row.uid

    return await db.run("bootstrap.owner", work)


async def opens(db: Database, key: str) -> bool:
    """Whether a key opens anything: nobody has revoked it."""
    return await db.read("bootstrap.key", lambda r: keys.find_owner(r, digest(key))) is not None


async def ensure_host_token(db: Database, host: str, token: str) -> None:
    """Store the hash of a host's token."""

    async def work(tx: Tx) -> None:
        await host_tokens.insert_token(tx, token_id=new_id(), host=host, token_hash=digest(token))

    await db.run("bootstrap.host", work)


async def publish_signing_key(db: Database, signer: Signer) -> None:
    """Store the public half of the signing key."""

    async def work(tx: Tx) -> None:
        await signing_keys.publish(tx, kid=signer.kid, public_pem=signer.public_pem)

    await db.run("bootstrap.signing_key", work)


async def new_login_link(db: Database, uid: str) -> str:
    """The secret of a link that opens one browser session, once, within a day."""
    return await sessions.create_link(db, uid)
