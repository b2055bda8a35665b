"""Reading request bodies: bounded while they stream in, strict about their shape, forgiving about bytes that hurt (F10).

A body that is larger than its limit is answered 413 as soon as that is known: by its announced length before a byte is
read, else while it is read. The rest is read and dropped up to a bound, so that a client that only writes gets to see the
answer instead of a reset connection.
"""

import asyncio
import json
from collections.abc import Collection
from typing import TypeVar, cast

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from turnkeeper.api.problems import ProblemRaised, from_validation, shown
from turnkeeper.domain.errors import ProblemCode
from turnkeeper.kit.text import clean_json

M = TypeVar("M", bound=BaseModel)

_DRAIN_BYTES_MAX = 32 * 1024 * 1024
_DRAIN_S = 5.0
_NUL_ESCAPE = b"\\u0000"

EVERYTHING: Collection[str] = frozenset({"*"})
"""All texts of a body are free text: what agents write, sent on by workers."""


async def read_bytes(request: Request, limit: int) -> bytes:
    """The whole body. `ProblemRaised` (413) when it is longer than `limit` bytes."""
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and (size := int(announced[:20])) > limit:
        if size <= _DRAIN_BYTES_MAX:
            await _drain(request)
        raise _too_large(limit, size)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit:
            if message.get("more_body", False):
                await _drain(request)
            raise _too_large(limit, None)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def read_model(
    request: Request, model: type[M], limit: int, *, free_text: Collection[str] = ()
) -> tuple[M, bytes]:
    """The body as `model`, and its bytes.

    In the top-level fields named by `free_text` (or everywhere, with `EVERYTHING`) NUL and lone surrogates are replaced.
    Elsewhere they are refused with the name of the field: a path that was changed quietly would be another path (F14).
    """
    body = await read_bytes(request, limit)
    return parse_model(body, model, free_text=free_text), body


def parse_model(body: bytes, model: type[M], *, free_text: Collection[str] = ()) -> M:
    """`body` as `model`; `ProblemRaised` (400) where it is not."""
    if not body:
        raise ProblemRaised(ProblemCode.INVALID_JSON, "the body is empty: a JSON object is expected")
    try:
        if not (free_text and _NUL_ESCAPE in body):
            return model.model_validate_json(body)
        return model.model_validate(_cleaned(_loads(body), free_text))
    except ValidationError as failure:
        if failure.errors(include_url=False, include_context=False)[0]["type"] != "json_invalid":
            raise from_validation(failure) from None
        strict = failure
    except (ValueError, RecursionError) as failure:
        raise ProblemRaised(ProblemCode.INVALID_JSON, f"the body is not JSON: {failure}") from None
    # What Python reads and the strict parser does not: lone surrogates, NaN, broken UTF-8.
    try:
        return model.model_validate(_cleaned(_loads(body), free_text))
    except ValidationError as failure:
        raise from_validation(failure) from None
    except (ValueError, RecursionError):
        raise from_validation(strict) from None


def require_json(request: Request) -> None:
    """`ProblemRaised` (415) when the body says that it is something else than JSON.

    This also keeps other sites' plain forms away: a form cannot say `application/json`.
    """
    kind = request.headers.get("content-type", "").split(";", 1)[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise ProblemRaised(
            ProblemCode.UNSUPPORTED_MEDIA_TYPE, f"content-type is {shown(kind)}: application/json is expected"
        )


def _loads(body: bytes) -> object:
    # Broken UTF-8 becomes lone surrogates here, which are then replaced or refused as such.
    return cast("object", json.loads(body.decode("utf-8", "surrogateescape")))


def _cleaned(value: object, free_text: Collection[str]) -> object:
    if free_text is EVERYTHING:
        return clean_json(value)
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, object]", value)
    return {name: clean_json(item) if name in free_text else item for name, item in fields.items()}


def _too_large(limit: int, size: int | None) -> ProblemRaised:
    what = "the body" if size is None else f"the body of {size} bytes"
    # What is still on its way must not be taken for the next request.
    return ProblemRaised(
        ProblemCode.TOO_LARGE,
        f"{what} is larger than {limit} bytes",
        extra={"limit_bytes": limit},
        headers={"connection": "close"},
    )


async def _drain(request: Request) -> None:
    size = 0
    try:
        async with asyncio.timeout(_DRAIN_S):
            while size < _DRAIN_BYTES_MAX:
                message: Message = await request.receive()
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
                size += len(message.get("body", b""))
    except TimeoutError:
        return
