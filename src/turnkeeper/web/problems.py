"""What a use case refused, in the words of a page: a status, a title in the reader's language, and one line."""

from dataclasses import dataclass
from typing import assert_never

from turnkeeper.domain.errors import Language, ProblemCode, problem_title
from turnkeeper.domain.said import in_language, no_such
from turnkeeper.services.answers import Conflict, Invalid, Mismatch, NotFound

Unwanted = Conflict | Invalid | Mismatch | NotFound


@dataclass(frozen=True)
class PageProblem:
    """What is shown above a page, or sent to its script."""

    status: int
    code: ProblemCode
    title: str
    detail: str


def problem_of(result: Unwanted, language: Language) -> PageProblem:
    """The refusal of a use case."""
    match result:
        case Conflict(code, detail, _):
            return page_problem(409, code, language, detail)
        case Invalid(code, _, detail, _):
            return page_problem(422, code, language, detail)
        case Mismatch():
            return page_problem(422, ProblemCode.IDEMPOTENCY_MISMATCH, language)
        case NotFound(what):
            return page_problem(404, ProblemCode.NOT_FOUND, language, no_such(what))
        case _:
            assert_never(result)


def page_problem(status: int, code: ProblemCode, language: Language, detail: str = "") -> PageProblem:
    """A problem of our own."""
    return PageProblem(status, code, problem_title(code, language), in_language(detail, language))
