"""Host tokens: random, per host, only the SHA-256 stored."""

from dataclasses import dataclass
from datetime import datetime

from turnkeeper.store.tx import Reader, Tx


@dataclass(frozen=True)
class HostTokenRow:
    """A row of `host_tokens` without its hash."""

    id: str
    host: str
    created_at: datetime
    revoked_at: datetime | None


async def insert_token(tx: Tx, *, token_id: str, host: str, token_hash: bytes) -> HostTokenRow | None:
    """None: that very token is stored already."""
    return await tx.fetch_one(
        "INSERT INTO host_tokens (id, host, token_hash) VALUES (%s, %s, %s) ON CONFLICT (token_hash) DO NOTHING "
        "RETURNING id, host, created_at, revoked_at",
        (token_id, host, token_hash),
        as_=HostTokenRow,
    )


async def find_host(reader: Reader, token_hash: bytes) -> str | None:
    """The host of a token that is not revoked."""
    return await reader.fetch_value(
        "SELECT host FROM host_tokens WHERE token_hash = %s AND revoked_at IS NULL", (token_hash,)
    )


async def list_tokens(reader: Reader, host: str) -> list[HostTokenRow]:
    """A host's tokens, oldest first, revoked ones included."""
    return await reader.fetch_all(
        "SELECT id, host, created_at, revoked_at FROM host_tokens WHERE host = %s ORDER BY created_at, id",
        (host,),
        as_=HostTokenRow,
    )


async def revoke_token(tx: Tx, host: str, token_id: str) -> HostTokenRow | None:
    """The token, revoked now or earlier. None: this host has no such token."""
    return await tx.fetch_one(
        "UPDATE host_tokens SET revoked_at = coalesce(revoked_at, tk_now()) WHERE id = %s AND host = %s "
        "RETURNING id, host, created_at, revoked_at",
        (token_id, host),
        as_=HostTokenRow,
    )


async def revoke_tokens(tx: Tx, host: str) -> int:
    """Revoke every token of a host; how many there were."""
    return await tx.execute(
        "UPDATE host_tokens SET revoked_at = tk_now() WHERE host = %s AND revoked_at IS NULL", (host,)
    )
