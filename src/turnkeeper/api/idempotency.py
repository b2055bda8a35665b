"""The `Idempotency-Key` of a creating POST (F08)."""

from pydantic import BaseModel
from starlette.requests import Request

from turnkeeper.api.problems import ProblemRaised, shown
from turnkeeper.domain.errors import ProblemCode
from turnkeeper.services.idempotency import KEY_BYTES_MAX, IdempotencyKey, request_key


def idempotency_key(request: Request, route: str, body: BaseModel) -> IdempotencyKey | None:
    """The key of this request, None without the header. The path's parameters belong to what the key stands for."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not (1 <= len(key) <= KEY_BYTES_MAX and key.isascii() and key.isprintable()):
        raise ProblemRaised(
            ProblemCode.BAD_REQUEST,
            f"Idempotency-Key is {shown(key)}: 1 to {KEY_BYTES_MAX} printable ASCII characters are expected",
            field="Idempotency-Key",
        )
    return request_key(route, key, {"path": dict(request.path_params), "body": body.model_dump(mode="json")})
