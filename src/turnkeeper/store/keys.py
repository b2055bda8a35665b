"""API keys. Only the SHA-256 of a key is stored."""

from dataclasses import dataclass
from datetime import datetime

from turnkeeper.store.tx import Reader, Tx


@dataclass(frozen=True)
class KeyRow:
    """A row of `api_keys` without its hash."""

    id: str
    uid: str
    name: str
    shown_prefix: str
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True)
class KeyOwner:
    """Whose key it is. `stale_use`: the time of its last use is more than a minute old."""

    key_id: str
    uid: str
    name: str
    role: str
    language: str
    stale_use: bool


async def insert_key(tx: Tx, *, key_id: str, uid: str, name: str, shown_prefix: str, key_hash: bytes) -> KeyRow | None:
    """None: that very key is stored already."""
    return await tx.fetch_one(
        "INSERT INTO api_keys (id, uid, name, shown_prefix, key_hash) VALUES (%s, %s, %s, %s, %s) "
        "ON CONFLICT (key_hash) DO NOTHING "
        "RETURNING id, uid, name, shown_prefix, created_at, last_used_at, revoked_at",
        (key_id, uid, name, shown_prefix, key_hash),
        as_=KeyRow,
    )


async def find_owner(reader: Reader, key_hash: bytes) -> KeyOwner | None:
    """The owner of a key that is not revoked."""
    return await reader.fetch_one(
        "SELECT k.id AS key_id, u.uid, u.name, u.role, u.language, "
        "k.last_used_at IS NULL OR k.last_used_at < tk_now() - interval '1 minute' AS stale_use "
        "FROM api_keys k JOIN users u ON u.uid = k.uid WHERE k.key_hash = %s AND k.revoked_at IS NULL",
        (key_hash,),
        as_=KeyOwner,
    )


async def touch_key(tx: Tx, key_id: str) -> int:
    """Note the use, at most once a minute."""
    return await tx.execute(
        "UPDATE api_keys SET last_used_at = tk_now() WHERE id = %s AND revoked_at IS NULL "
        "AND (last_used_at IS NULL OR last_used_at < tk_now() - interval '1 minute')",
        (key_id,),
    )


async def list_keys(reader: Reader, uid: str) -> list[KeyRow]:
    """An owner's keys, oldest first, revoked ones included."""
    return await reader.fetch_all(
        "SELECT id, uid, name, shown_prefix, created_at, last_used_at, revoked_at FROM api_keys "
        "WHERE uid = %s ORDER BY created_at, id",
        (uid,),
        as_=KeyRow,
    )


async def revoke_key(tx: Tx, uid: str, key_id: str) -> KeyRow | None:
    """The key, revoked now or earlier. None: this owner has no such key."""
    return await tx.fetch_one(
        "UPDATE api_keys SET revoked_at = coalesce(revoked_at, tk_now()) WHERE id = %s AND uid = %s "
        "RETURNING id, uid, name, shown_prefix, created_at, last_used_at, revoked_at",
        (key_id, uid),
        as_=KeyRow,
    )
