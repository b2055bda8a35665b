"""Host tokens: created (shown once), listed, revoked by administrators. A host needs one before it is heard the first time."""

from typing import Final

from turnkeeper.domain.errors import InvariantViolation, ProblemCode
from turnkeeper.domain.names import HOST_NAME_RULE, is_host_name
from turnkeeper.kit.ids import digest, is_id, new_id, new_secret
from turnkeeper.kit.log import get_logger
from turnkeeper.services.answers import Conflict, Invalid, Mismatch, NotFound
from turnkeeper.services.context import Services
from turnkeeper.services.idempotency import IdempotencyKey, once, shown_only_once
from turnkeeper.store import host_tokens as statements
from turnkeeper.store.host_tokens import HostTokenRow
from turnkeeper.store.tx import Tx
from turnkeeper.wire.public import CreatedHostToken, HostToken

PREFIX: Final = "tkh_"
NO_HOST_NAME: Final = Invalid(ProblemCode.BAD_REQUEST, "name", HOST_NAME_RULE)
_log = get_logger("services.host_tokens")


def token_of(row: HostTokenRow) -> HostToken:
    """A token as lists show it."""
    return HostToken.model_validate(vars(row))


async def create_token(
    s: Services, uid: str, host: str, idem: IdempotencyKey | None = None
) -> CreatedHostToken | Invalid | Conflict | Mismatch:
    """A new token for a host; earlier ones stay. A repeated request cannot show it again: `Conflict`."""
    if not is_host_name(host):
        return NO_HOST_NAME
    token, token_id = new_secret(PREFIX), new_id()

    async def insert(tx: Tx) -> HostToken:
        row = await statements.insert_token(tx, token_id=token_id, host=host, token_hash=digest(token))
        if row is None:
            raise InvariantViolation("a fresh random token is stored already")
        return token_of(row)

    async def work(tx: Tx) -> HostToken | Mismatch:
        return await once(tx, uid, idem, HostToken, lambda: insert(tx))

    made = await s.db.run("host_token.create", work)
    if isinstance(made, Mismatch):
        return made
    if made.id != token_id:
        return shown_only_once("host token")
    _log.info("host_token_created", host=host, token_id=token_id, by=uid)
    return CreatedHostToken.model_validate({**made.model_dump(), "token": token})


async def list_tokens(s: Services, host: str) -> list[HostToken] | Invalid:
    """A host's tokens, oldest first, revoked ones included; none for a host that nobody knows."""
    return await _tokens(s, host) if is_host_name(host) else NO_HOST_NAME


async def _tokens(s: Services, host: str) -> list[HostToken]:
    return [token_of(row) for row in await s.db.read("host_token.list", lambda r: statements.list_tokens(r, host))]


async def revoke_token(s: Services, uid: str, host: str, token_id: str) -> HostToken | Invalid | NotFound:
    """The token opens nothing any more. Revoking again changes nothing."""
    if not is_host_name(host):
        return NO_HOST_NAME
    if not is_id(token_id):
        return NotFound("host token")

    async def work(tx: Tx) -> HostTokenRow | None:
        return await statements.revoke_token(tx, host, token_id)

    row = await s.db.run("host_token.revoke", work)
    if row is None:
        return NotFound("host token")
    _log.info("host_token_revoked", host=host, token_id=token_id, by=uid)
    return token_of(row)


async def revoke_tokens(s: Services, uid: str, host: str) -> list[HostToken] | Invalid | NotFound:
    """Every token of a host stops opening anything, so that it claims no more; its live turns end by their own tokens.

    Revoking again changes nothing. `NotFound` where there never was a token: a mistyped name must not look like a host
    that was shut out.
    """
    if not is_host_name(host):
        return NO_HOST_NAME

    async def work(tx: Tx) -> int:
        return await statements.revoke_tokens(tx, host)

    count = await s.db.run("host_token.revoke_all", work)
    tokens = await _tokens(s, host)
    if not tokens:
        return NotFound("host, or it never had a token")
    _log.info("host_tokens_revoked", host=host, count=count, by=uid)
    return tokens
