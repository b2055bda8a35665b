"""The public half of the control plane's signing key, for every replica and for operators."""

from turnkeeper.store.tx import Reader, Tx


async def publish(tx: Tx, *, kid: str, public_pem: str) -> int:
    """Store a public key once."""
    return await tx.execute(
        "INSERT INTO signing_keys (kid, public_pem) VALUES (%s, %s) ON CONFLICT (kid) DO NOTHING", (kid, public_pem)
    )


async def list_keys(reader: Reader) -> dict[str, str]:
    """Every public key by its `kid`."""
    rows = await reader.fetch_all("SELECT kid, public_pem FROM signing_keys ORDER BY created_at")
    return {row["kid"]: row["public_pem"] for row in rows}
