"""Errors over HTTP: RFC 9457 problem details with a stable code."""

from typing import Any

from pydantic import ConfigDict

from turnkeeper.wire.base import Answer

PROBLEM_MEDIA_TYPE = "application/problem+json"


class Problem(Answer):
    """`code` is one of `domain.errors.ProblemCode` and stable; `detail` is one line that names the thing and what would be right.

    Extra members carry what a program may need, such as `holder` with `workdir_held`.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str = ""
    retryable: bool = False

    def extra(self) -> dict[str, Any]:
        """The members beyond those of every problem."""
        return dict(self.model_extra or {})
