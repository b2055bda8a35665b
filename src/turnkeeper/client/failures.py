"""How a call can fail, for whoever calls: the peer refused it, or there was no whole answer.

Neither holds a URL, a token or a body in its text (E-02); `detail` of a refusal is the peer's own one line for a person.
"""

from collections.abc import Mapping
from typing import Any


class CallError(Exception):
    """A call without the answer that was asked for. `operation` is `METHOD name`, never a URL."""

    def __init__(self, operation: str, text: str, *, retryable: bool) -> None:
        super().__init__(f"{operation}: {text}")
        self.operation = operation
        self.retryable = retryable


class ConnectionFailed(CallError):  # noqa: N818 - the name says what happened
    """No whole answer came. `kind` is the name of the exception class that the transport raised.

    `sent` False: the request provably never left, as no connection was made. True: the peer may have acted on it.
    """

    def __init__(self, operation: str, kind: str, *, sent: bool) -> None:
        super().__init__(operation, f"no answer ({kind})", retryable=True)
        self.kind = kind
        self.sent = sent


class ClientError(CallError):
    """The peer answered, with a problem (RFC 9457) or with something that is none of this product's answers.

    `code` is the problem's stable code; `unexpected_answer` where there was none, and `bad_answer` where a success could
    not be read. `extra` holds the problem's further members.
    """

    def __init__(
        self,
        operation: str,
        status: int,
        code: str,
        detail: str = "",
        *,
        retryable: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(operation, f"{status} {code}{f': {detail}' if detail else ''}", retryable=retryable)
        self.status = status
        self.code = code
        self.detail = detail
        self.extra = dict(extra or {})
