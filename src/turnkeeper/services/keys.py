"""API keys: created (shown once), listed, revoked."""

from turnkeeper.domain.errors import InvariantViolation
from turnkeeper.kit.ids import digest, is_id, new_id, new_secret
from turnkeeper.kit.text import clean
from turnkeeper.services.answers import Conflict, Mismatch, NotFound
from turnkeeper.services.auth import Owner
from turnkeeper.services.context import Services
from turnkeeper.services.idempotency import IdempotencyKey, once, shown_only_once
from turnkeeper.store import keys as statements
from turnkeeper.store import users, web_sessions
from turnkeeper.store.keys import KeyRow
from turnkeeper.store.tx import Tx
from turnkeeper.wire.public import CreatedKey, Key, NewKey

PREFIX = "tk_"
_SHOWN = len(PREFIX) + 6


def key_of(row: KeyRow) -> Key:
    """A key as lists show it."""
    return Key(
        id=row.id,
        name=row.name,
        shown_prefix=row.shown_prefix,
        created_at=row.created_at,
        last_used_at=row.last_used_at,
        revoked_at=row.revoked_at,
    )


async def create_key(
    s: Services, uid: str, request: NewKey, idem: IdempotencyKey | None = None
) -> CreatedKey | Conflict | Mismatch:
    """A new key. A repeated request cannot show it again, because it is stored nowhere: `Conflict`."""
    key = new_secret(PREFIX)

    async def work(tx: Tx) -> Key | Mismatch:
        return await once(tx, uid, idem, Key, lambda: insert_key(tx, uid, clean(request.name), key))

    made = await s.db.run("key.create", work)
    if isinstance(made, Mismatch):
        return made
    if made.shown_prefix != key[:_SHOWN]:
        return shown_only_once("API key")
    return CreatedKey.model_validate({**made.model_dump(), "key": key})


async def create_key_for(
    s: Services, uid: str, request: NewKey, idem: IdempotencyKey | None = None
) -> CreatedKey | Conflict | Mismatch | NotFound:
    """A new key of somebody else, who may be nobody."""
    if not is_id(uid) or await s.db.read("user.get", lambda r: users.get_user(r, uid)) is None:
        return NotFound("user")
    return await create_key(s, uid, request, idem)


async def insert_key(tx: Tx, uid: str, name: str, key: str) -> Key:
    """Store the hash of a key."""
    row = await statements.insert_key(
        tx, key_id=new_id(), uid=uid, name=name, shown_prefix=key[:_SHOWN], key_hash=digest(key)
    )
    if row is None:
        raise InvariantViolation("a fresh random key is stored already")
    return key_of(row)


async def list_keys(s: Services, owner: Owner) -> list[Key]:
    """The owner's keys, oldest first, revoked ones included."""
    return [key_of(row) for row in await s.db.read("key.list", lambda r: statements.list_keys(r, owner.uid))]


async def revoke_key(s: Services, owner: Owner, key_id: str) -> Key | NotFound:
    """The key opens nothing any more, nor do the owner's links and browser sessions, which it may have made. Revoking again
    changes nothing else."""
    if not is_id(key_id):
        return NotFound("key")

    async def work(tx: Tx) -> KeyRow | None:
        row = await statements.revoke_key(tx, owner.uid, key_id)
        if row is not None:
            await web_sessions.end_all(tx, owner.uid)
        return row

    row = await s.db.run("key.revoke", work)
    return NotFound("key") if row is None else key_of(row)
