"""Host tokens: random, per host, only the SHA-256 stored."""

from turnkeeper.store.tx import Reader, Tx


async def insert_token(tx: Tx, *, token_id: str, host: str, token_hash: bytes) -> int:
    """Zero: that very token is stored already."""
    return await tx.execute(
        "INSERT INTO host_tokens (id, host, token_hash) VALUES (%s, %s, %s) ON CONFLICT (token_hash) DO NOTHING",
        (token_id, host, token_hash),
    )


async def find_host(reader: Reader, token_hash: bytes) -> str | None:
    """The host of a token that is not revoked."""
    return await reader.fetch_value(
        "SELECT host FROM host_tokens WHERE token_hash = %s AND revoked_at IS NULL", (token_hash,)
    )


async def revoke_tokens(tx: Tx, host: str) -> int:
    """Revoke every token of a host; how many there were."""
    return await tx.execute(
        "UPDATE host_tokens SET revoked_at = tk_now() WHERE host = %s AND revoked_at IS NULL", (host,)
    )
