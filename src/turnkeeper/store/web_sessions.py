"""A browser's session and the one-time link that opens it. Only hashes are stored."""

from dataclasses import dataclass

from turnkeeper.store.tx import Reader, Tx


@dataclass(frozen=True)
class SessionOwner:
    """Whose session it is."""

    uid: str
    name: str
    role: str
    language: str


async def insert(tx: Tx, *, session_id: str, uid: str, kind: str, secret_hash: bytes, lifetime_s: float) -> int:
    """Store a `link` or a `session` that ends after `lifetime_s`."""
    return await tx.execute(
        "INSERT INTO web_sessions (id, uid, kind, secret_hash, expires_at) "
        "VALUES (%s, %s, %s, %s, tk_now() + make_interval(secs => %s))",
        (session_id, uid, kind, secret_hash, lifetime_s),
    )


async def use_link(tx: Tx, secret_hash: bytes) -> str | None:
    """Use up a link: its uid, or None where it is unknown, used or too old. Of two that come at once one wins."""
    return await tx.fetch_value(
        "UPDATE web_sessions SET used_at = tk_now() WHERE secret_hash = %s AND kind = 'link' AND used_at IS NULL "
        "AND expires_at > tk_now() RETURNING uid",
        (secret_hash,),
    )


async def find_owner(reader: Reader, secret_hash: bytes) -> SessionOwner | None:
    """The owner of a session that has not ended."""
    return await reader.fetch_one(
        "SELECT u.uid, u.name, u.role, u.language FROM web_sessions w JOIN users u ON u.uid = w.uid "
        "WHERE w.secret_hash = %s AND w.kind = 'session' AND w.expires_at > tk_now()",
        (secret_hash,),
        as_=SessionOwner,
    )


async def end(tx: Tx, secret_hash: bytes) -> int:
    """End a session now."""
    return await tx.execute(
        "DELETE FROM web_sessions WHERE secret_hash = %s AND kind = 'session'",
        (secret_hash,),
    )


async def end_all(tx: Tx, uid: str) -> int:
    """End every session and link of an owner."""
    return await tx.execute("DELETE FROM web_sessions WHERE uid = %s", (uid,))


async def delete_expired(tx: Tx, limit: int) -> int:
    """Remove what ended more than a day ago."""
    return await tx.execute(
        "DELETE FROM web_sessions WHERE id IN (SELECT id FROM web_sessions "
        "WHERE expires_at < tk_now() - interval '1 day' LIMIT %s)",
        (limit,),
    )
