"""Refusals over HTTP: RFC 9457 problems with a stable code."""

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from turnkeeper.domain.errors import ProblemCode, problem_title
from turnkeeper.kit.text import clean
from turnkeeper.provisioner.outcomes import Refused
from turnkeeper.wire.problem import PROBLEM_MEDIA_TYPE, Problem

_STATUS: Final[Mapping[ProblemCode, int]] = {
    ProblemCode.BAD_REQUEST: 400,
    ProblemCode.INVALID_JSON: 400,
    ProblemCode.UNAUTHORIZED: 401,
    ProblemCode.FORBIDDEN: 403,
    ProblemCode.NOT_FOUND: 404,
    ProblemCode.METHOD_NOT_ALLOWED: 405,
    ProblemCode.CONFLICT: 409,
    ProblemCode.AGENT_UNAVAILABLE: 409,
    ProblemCode.GENERATION_MISMATCH: 409,
    ProblemCode.FENCED: 409,
    ProblemCode.GONE: 410,
    ProblemCode.PRECONDITION_FAILED: 412,
    ProblemCode.TOO_LARGE: 413,
    ProblemCode.INVALID_WORKDIR: 422,
    ProblemCode.PRECONDITION_REQUIRED: 428,
    ProblemCode.INTERNAL: 500,
    ProblemCode.UPSTREAM_UNAVAILABLE: 503,
    ProblemCode.TIMEOUT: 504,
}
_RETRYABLE: Final = (ProblemCode.UPSTREAM_UNAVAILABLE, ProblemCode.TIMEOUT)


def problem(refused: Refused) -> Response:
    """The answer that says why not. `field` names what of the request is wrong."""
    status = _STATUS[refused.code]
    body = Problem(
        title=problem_title(refused.code),
        status=status,
        code=refused.code,
        detail=clean(refused.detail),
        retryable=refused.code in _RETRYABLE,
        **({} if refused.field is None else {"field": refused.field}),
    )
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return Response(body.model_dump_json(), status, headers, PROBLEM_MEDIA_TYPE)
