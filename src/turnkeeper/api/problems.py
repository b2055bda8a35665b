"""Every refusal over HTTP: RFC 9457 problem details with a stable code, one line of detail and no traceback.

Status codes live here: a `ProblemCode` of the domain says why, the table below with which number.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import ValidationError
from starlette.responses import Response

from turnkeeper.domain.errors import ErrorCode, Language, ProblemCode, problem_title, sentence
from turnkeeper.domain.said import Said, in_language
from turnkeeper.kit.log import redact_text
from turnkeeper.kit.text import clean
from turnkeeper.wire.problem import PROBLEM_MEDIA_TYPE, Problem

STATUS: Mapping[ProblemCode, int] = {
    ProblemCode.BAD_REQUEST: 400,
    ProblemCode.INVALID_JSON: 400,
    ProblemCode.UNAUTHORIZED: 401,
    ProblemCode.FORBIDDEN: 403,
    ProblemCode.HOST_NOT_ALLOWED: 403,
    ProblemCode.NOT_FOUND: 404,
    ProblemCode.METHOD_NOT_ALLOWED: 405,
    ProblemCode.NOT_ACCEPTABLE: 406,
    ProblemCode.UNSUPPORTED_MEDIA_TYPE: 415,
    ProblemCode.CONFLICT: 409,
    ProblemCode.LEASE_REFUSED: 409,
    ProblemCode.GONE: 410,
    ProblemCode.IDEMPOTENCY_MISMATCH: 422,
    ProblemCode.IDEMPOTENCY_IN_PROGRESS: 409,
    ProblemCode.TOO_LARGE: 413,
    ProblemCode.UNKNOWN_AGENT: 422,
    ProblemCode.AGENT_UNAVAILABLE: 409,
    ProblemCode.EMPTY_PROMPT: 422,
    ProblemCode.PROMPT_TOO_LARGE: 413,
    ProblemCode.WORKDIR_HELD: 409,
    ProblemCode.INVALID_WORKDIR: 422,
    ProblemCode.QUEUE_FULL: 409,
    ProblemCode.CONVERSATION_BUSY: 409,
    ProblemCode.CONVERSATION_CLOSED: 409,
    ProblemCode.CONVERSATION_LOST: 409,
    ProblemCode.RUN_ENDED: 409,
    ProblemCode.TREE_LIMIT: 422,
    ProblemCode.GENERATION_MISMATCH: 409,
    ProblemCode.FENCED: 409,
    ProblemCode.PRECONDITION_FAILED: 412,
    ProblemCode.PRECONDITION_REQUIRED: 428,
    ProblemCode.NOT_READY: 503,
    ProblemCode.CLAIMS_REFUSED: 503,
    ProblemCode.UPSTREAM_UNAVAILABLE: 503,
    ProblemCode.RATE_LIMITED: 429,
    ProblemCode.TIMEOUT: 504,
    ProblemCode.INTERNAL: 500,
}

RETRYABLE = frozenset(
    {
        ProblemCode.IDEMPOTENCY_IN_PROGRESS,
        ProblemCode.QUEUE_FULL,
        ProblemCode.NOT_READY,
        ProblemCode.CLAIMS_REFUSED,
        ProblemCode.UPSTREAM_UNAVAILABLE,
        ProblemCode.RATE_LIMITED,
        ProblemCode.TIMEOUT,
    }
)
"""The same request may succeed later without anybody changing it."""

_SHOWN_MAX = 80
_DETAIL_MAX = 500


class ProblemRaised(Exception):  # noqa: N818 - what it carries is the name
    """Ends the handling of a request with a problem. `field` names what is wrong; `extra` are further members, such as `holder`."""

    def __init__(
        self,
        code: ProblemCode,
        detail: str,
        *,
        field: str | None = None,
        extra: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.headers = headers
        self.extra = {**(extra or {}), **({} if field is None else {"field": field})}

    def response(self, language: Language) -> Response:
        """The answer, in the reader's language: its title, and its detail where that was said in it."""
        return problem_response(self.code, self.detail, language=language, headers=self.headers, extra=self.extra)


def problem_response(
    code: ProblemCode,
    detail: str,
    *,
    language: Language = Language.EN,
    headers: Mapping[str, str] | None = None,
    extra: Mapping[str, Any] | None = None,
    run_error: ErrorCode | None = None,
) -> Response:
    """A problem as an HTTP answer. `run_error`: the worker is told the error of its run, which then is the code."""
    status = STATUS[code]
    problem = Problem(
        title=problem_title(code, language) if run_error is None else sentence(run_error, language),
        status=status,
        code=code.value if run_error is None else run_error.value,
        detail=one_line(in_language(detail, language)),
        retryable=code in RETRYABLE,
        **(extra or {}),
    )
    answer_headers = {"cache-control": "no-store", **(headers or {})}
    if status == 401:
        answer_headers.setdefault("www-authenticate", 'Bearer realm="turnkeeper"')
    return Response(problem.model_dump_json(), status, answer_headers, PROBLEM_MEDIA_TYPE)


def shown(value: object) -> str:
    """A value that somebody sent, for a sentence: quoted, one line, at most 80 characters, without our secrets."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        value = redact_text(clean(value))
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    text = redact_text(clean(text))
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + "…"


def one_line(text: str) -> str:
    """`text` without line breaks, other controls and our secrets, and not longer than a line should be."""
    line = "".join(c if c.isprintable() else " " for c in redact_text(clean(text)))
    return line if len(line) <= _DETAIL_MAX else line[: _DETAIL_MAX - 1] + "…"


def from_validation(failure: ValidationError) -> ProblemRaised:
    """What pydantic refused, as one line: the field, its value and what would be right."""
    return from_errors(cast("Sequence[Mapping[str, Any]]", failure.errors(include_url=False)))


def from_errors(errors: Sequence[Mapping[str, Any]]) -> ProblemRaised:
    """The same for a list of pydantic's error records (FastAPI hands those over)."""
    if not errors:
        return ProblemRaised(ProblemCode.BAD_REQUEST, "the request is not valid")
    first = errors[0]
    if first["type"] == "json_invalid":
        why = first.get("ctx", {}).get("error", first["msg"])
        return ProblemRaised(ProblemCode.INVALID_JSON, f"the body is not JSON: {why}")
    field = ".".join(str(part) for part in first["loc"] if part not in {"body", "query", "path", "header"}) or "body"
    said = _sentence(field, first)
    if len(errors) > 1:
        more = len(errors) - 1
        said = Said(f"{said} (and {more} more)", f"{in_language(said, Language.ZH)}（另有 {more} 处）")
    return ProblemRaised(ProblemCode.BAD_REQUEST, said, field=one_line(field))


def _sentence(field: str, error: Mapping[str, Any]) -> str:
    field = one_line(field)[:100]
    if error["type"] == "missing":
        return Said(f"{field} is missing", f"缺少 {field}")
    if error["type"] == "extra_forbidden":
        return Said(f"{field} is not a field of this request", f"{field} 不是此请求的字段")
    message = str(error["msg"])
    return f"{field} is {shown(error.get('input'))}: {message[:1].lower()}{message[1:]}"
