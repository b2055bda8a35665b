"""What a use case answered, as an HTTP answer: the one place where outcomes become statuses."""

from collections.abc import Mapping
from typing import TypeVar, assert_never

from pydantic import BaseModel
from starlette.responses import Response

from turnkeeper.api.problems import ProblemRaised, problem_response
from turnkeeper.domain.errors import Language, ProblemCode, sentence
from turnkeeper.domain.said import Said, no_such
from turnkeeper.services.answers import (
    ClaimsRefused,
    Conflict,
    Gone,
    Invalid,
    Mismatch,
    NotFound,
    Refused,
    RefusedWhy,
    Rejected,
)

Unwanted = Refused | Rejected | Gone | NotFound | Invalid | Conflict | Mismatch | ClaimsRefused
"""Every answer that is not what was asked for."""

T = TypeVar("T")

_HEADERS = {"cache-control": "no-store"}
_JSON_HEADERS = ((b"cache-control", b"no-store"), (b"content-type", b"application/json"))


class _JsonResponse(Response):
    """One of many: its head is the same every time but for the length."""

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:  # noqa: ARG002 - as Starlette calls it
        """What is sent as the head."""
        self.raw_headers = [*_JSON_HEADERS, (b"content-length", b"%d" % len(self.body))]


def reply(result: BaseModel | Unwanted | None, *, status: int = 200, language: Language = Language.EN) -> Response:
    """The answer to a request. None: it is done, and there is nothing to say (204)."""
    if result is None:
        return Response(status_code=204, headers=_HEADERS)
    if isinstance(result, BaseModel):
        return _JsonResponse(result.model_dump_json(), status)
    return refusal(result, language)


def wanted(result: T | Unwanted) -> T:
    """What was asked for; anything else is raised as the problem that it is."""
    if isinstance(result, Unwanted):
        raise _problem(result)
    return result


def refusal(result: Unwanted, language: Language) -> Response:
    """An unwanted answer as a problem."""
    if isinstance(result, Rejected):
        # The code of the run's error itself: the worker finishes the run with it (T-05).
        return problem_response(ProblemCode.CONFLICT, result.detail, language=language, run_error=result.code)
    return _problem(result).response(language)


def _problem(result: Unwanted) -> ProblemRaised:
    match result:
        case Refused(why, detail):
            return ProblemRaised(_refused_code(why), detail or f"refused: {why.value}", extra={"why": why.value})
        case Rejected(code, detail):
            return ProblemRaised(ProblemCode.CONFLICT, detail or sentence(code))
        case Gone(detail):
            return ProblemRaised(ProblemCode.GONE, detail)
        case NotFound(what):
            return ProblemRaised(ProblemCode.NOT_FOUND, no_such(what))
        case Invalid(code, field, detail, extra):
            return ProblemRaised(code, detail, field=field, extra=extra)
        case Conflict(code, detail, extra):
            return ProblemRaised(code, detail, extra=extra)
        case Mismatch():
            return ProblemRaised(
                ProblemCode.IDEMPOTENCY_MISMATCH,
                Said(
                    "this Idempotency-Key was used with another body; choose a new key",
                    "此 Idempotency-Key 已用于另一个正文，请换一个新的",
                ),
            )
        case ClaimsRefused(detail):
            return ProblemRaised(ProblemCode.CLAIMS_REFUSED, detail)
        case _:
            assert_never(result)


def _refused_code(why: RefusedWhy) -> ProblemCode:
    match why:
        case RefusedWhy.LEASE:
            return ProblemCode.LEASE_REFUSED
        case RefusedWhy.ACTIVATION | RefusedWhy.MEMBERSHIP:
            return ProblemCode.FENCED
        case RefusedWhy.CANCELLED | RefusedWhy.ACCEPTED | RefusedWhy.ADMITTED:
            return ProblemCode.CONFLICT
        case _:
            assert_never(why)
