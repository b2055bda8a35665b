"""Idempotency keys for every creating POST (F08).

`once` runs the work of a use case inside a transaction that has first taken the key. The same key and body again: the
stored answer. Another body: `Mismatch`. Requests that come at once wait for the first, holding nothing else. A refusal is
not stored: nothing was created, and a later try may succeed.
"""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from turnkeeper.domain.errors import InvariantViolation, ProblemCode
from turnkeeper.kit.ids import digest
from turnkeeper.services.answers import Conflict, Mismatch
from turnkeeper.store import idempotency as statements
from turnkeeper.store.tx import Tx
from turnkeeper.wire.base import Answer

KEY_BYTES_MAX: Final = 255
KEPT_S: Final = 24 * 3600.0

A = TypeVar("A", bound=Answer)
R = TypeVar("R")


@dataclass(frozen=True)
class IdempotencyKey:
    """What the caller sent: its key, and a digest of everything that makes the request what it is."""

    route: str
    key: str
    body_digest: bytes


def request_key(route: str, key: str, body: Any) -> IdempotencyKey:
    """The key of one request. `route` is method and route template; `body` holds path parameters and the parsed body."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return IdempotencyKey(route, key, digest(text))


async def once(
    tx: Tx,
    uid: str,
    idem: IdempotencyKey | None,
    answer_type: type[A],
    create: Callable[[], Awaitable[A | R]],
) -> A | R | Mismatch:
    """The stored answer, or what `create` answers, stored under the key if it is an `answer_type`.

    The first step of its transaction: the key is waited for while no lock is held, so that it never takes part in a
    deadlock.
    """
    if idem is None:
        return await create()
    name = {"uid": uid, "route": idem.route, "key": idem.key}
    if not await statements.take_key(tx, **name, body_digest=idem.body_digest):
        stored = await statements.get_answer(tx, **name)
        if stored is None:
            # The other transaction has taken it back, or the reconciler forgot it: this one is the first again.
            return await once(tx, uid, idem, answer_type, create)
        return answer_type.model_validate(stored.answer) if stored.body_digest == idem.body_digest else Mismatch()
    made = await create()
    if isinstance(made, answer_type):
        if await statements.store_answer(tx, **name, status=201, answer=made.model_dump(mode="json")) != 1:
            raise InvariantViolation(f"idempotency key of {idem.route} was not this transaction's")
    else:
        await statements.drop_key(tx, **name)
    return made


def shown_only_once(what: str) -> Conflict:
    """The answer to a repeated request that created a secret: it is stored nowhere, so it cannot be shown again."""
    return Conflict(
        ProblemCode.CONFLICT,
        f"this {what} was created by an earlier request with the same key and is shown only once; "
        f"revoke it and create another one",
    )
