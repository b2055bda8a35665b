"""The routes of `wire.sandbox`: who may call them, what they parse and how a refusal is told."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from turnkeeper.kit import files, ids
from turnkeeper.sandboxd.activation import Activation
from turnkeeper.sandboxd.eventlog import encode
from turnkeeper.sandboxd.http import HttpAnswer, HttpRequest
from turnkeeper.sandboxd.supervisor import Refused, Supervisor
from turnkeeper.sandboxd.tokens import BadToken, TokenVerifier, Verified
from turnkeeper.wire.problem import PROBLEM_MEDIA_TYPE
from turnkeeper.wire.sandbox import Feed, OpenSession, Prompt, Secrets, Setup, Take
from turnkeeper.wire.walk import WALK_MEDIA_TYPE

ACTIVATION_HEADER: Final = "x-turnkeeper-activation"
_STATUSES: Final = {
    "not_settled": 404,
    "bad_mark": 422,
    "home": 422,
    "run": 422,
    "prompt_too_large": 413,
    "journal_failed": 503,
}
"""Statuses of refusals; every other one is a conflict, 409."""
_TITLES: Final = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
}

T = TypeVar("T", bound=BaseModel)
Result = BaseModel | Refused
_ActivationRoute = Callable[[Activation, HttpRequest], Awaitable[Result]]


class BadRequestError(Exception):
    """A body or query that says nothing useful; the text names the field."""


class Routes:
    """Everything but the bearer secret has been checked here before a handler runs."""

    def __init__(self, supervisor: Supervisor, verifier: TokenVerifier, secret: str) -> None:
        self._supervisor = supervisor
        self._verifier = verifier
        self._secret = secret
        self._plain: dict[tuple[str, str], Callable[[HttpRequest], HttpAnswer]] = {
            ("GET", "/v1/state"): lambda _: answer(supervisor.state()),
            ("GET", "/v1/mark"): lambda _: answer(supervisor.mark()),
            ("PUT", "/v1/secrets"): self._put_secrets,
            ("GET", "/v1/snapshot"): self._snapshot,
        }
        self._acting: dict[tuple[str, str], _ActivationRoute] = {
            ("POST", "/v1/feed"): self._feed,
            ("POST", "/v1/setup"): self._setup,
            ("POST", "/v1/session"): self._session,
            ("POST", "/v1/prompt"): self._prompt,
            ("GET", "/v1/receipt"): self._receipt,
            ("POST", "/v1/cancel"): self._cancel,
            ("POST", "/v1/stop"): self._stop,
        }

    _ENDING: Final = frozenset({"/v1/receipt", "/v1/cancel", "/v1/stop", "/v1/events"})
    """What an expired token may still do: read what its own turn came to, and end it."""

    async def handle(self, request: HttpRequest) -> HttpAnswer:
        """Answer one request."""
        if request.refused is not None:
            return problem(request.refused, "refused", "the request is too large or is not HTTP/1.1")
        if not authorized(request, self._secret):
            return problem(401, "unauthorized", "the bearer secret of this sandbox is needed")
        key = (request.method, request.path)
        try:
            if (plain := self._plain.get(key)) is not None:
                return plain(request)
            if key == ("POST", "/v1/take"):
                return await self._take(request)
            if key in self._acting or key == ("GET", "/v1/events"):
                return await self._act(request)
        except BadRequestError as error:
            return problem(422, "invalid_request", str(error))
        known = [*self._plain, *self._acting, ("POST", "/v1/take"), ("GET", "/v1/events")]
        if request.path in {path for _, path in known}:
            return problem(405, "method_not_allowed", f"{request.method} is not offered here")
        return problem(404, "not_found", "there is no such route")

    def _verified(self, request: HttpRequest) -> Verified | HttpAnswer:
        token = request.headers.get(ACTIVATION_HEADER, "")
        if not token:
            return problem(403, "forbidden", "an activation token is needed")
        verified = self._verifier.verify(token)
        if isinstance(verified, BadToken):
            return problem(403, "forbidden", f"the activation token is refused: {verified.why}")
        if verified.expired and request.path not in self._ENDING:
            return problem(403, "token_expired", "the activation token has expired")
        return verified

    async def _take(self, request: HttpRequest) -> HttpAnswer:
        verified = self._verified(request)
        if isinstance(verified, HttpAnswer):
            return verified
        return told(await self._supervisor.take(verified.claims, parse(Take, request)))

    async def _act(self, request: HttpRequest) -> HttpAnswer:
        verified = self._verified(request)
        if isinstance(verified, HttpAnswer):
            return verified
        activation = self._supervisor.find(verified.claims)
        if isinstance(activation, Refused):
            return told(activation)
        if request.path == "/v1/events":
            stream = self._supervisor.events(activation, number(request, "after"))
            return HttpAnswer(200, content_type="application/x-ndjson", stream=stream)
        return told(await self._acting[request.method, request.path](activation, request))

    async def _feed(self, activation: Activation, request: HttpRequest) -> Result:
        return self._supervisor.feed(activation, parse(Feed, request))

    async def _setup(self, activation: Activation, request: HttpRequest) -> Result:
        return await self._supervisor.setup(activation, parse(Setup, request))

    async def _session(self, activation: Activation, request: HttpRequest) -> Result:
        return await self._supervisor.session(activation, parse(OpenSession, request))

    async def _prompt(self, activation: Activation, request: HttpRequest) -> Result:
        return await self._supervisor.prompt(activation, parse(Prompt, request))

    async def _receipt(self, activation: Activation, _request: HttpRequest) -> Result:
        return self._supervisor.receipt(activation)

    async def _cancel(self, activation: Activation, _request: HttpRequest) -> Result:
        return self._supervisor.cancel(activation)

    async def _stop(self, activation: Activation, _request: HttpRequest) -> Result:
        return await self._supervisor.stop(activation)

    def _put_secrets(self, request: HttpRequest) -> HttpAnswer:
        self._supervisor.secrets.clear()
        self._supervisor.secrets.update(parse(Secrets, request).values)
        return HttpAnswer(200, b"{}")

    def _snapshot(self, request: HttpRequest) -> HttpAnswer:
        workdir = request.query.get("workdir", "")
        try:
            files.split_relative(workdir)
        except files.UnsafePathError as error:
            raise BadRequestError(f"workdir: {error.strerror}") from None
        return HttpAnswer(200, content_type=WALK_MEDIA_TYPE, stream=self._supervisor.snapshots.walk(workdir))


def authorized(request: HttpRequest, secret: str) -> bool:
    """Whether the request carries the per-sandbox secret; compared in constant time."""
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    return kind.lower() == "bearer" and ids.constant_time_equal(given.strip(), secret)


def parse(model: type[T], request: HttpRequest) -> T:
    """The body as a message; BadRequestError names the first field that is wrong and never quotes a value."""
    try:
        return model.model_validate_json(request.body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise BadRequestError(f"{where}: {first['msg']}") from None


def number(request: HttpRequest, name: str) -> int:
    """A query parameter that is a count; absent is 0."""
    text = request.query.get(name, "0")
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise BadRequestError(f"{name}: a number from 0 is needed")
    return int(text)


def told(result: Result) -> HttpAnswer:
    """A result as it is answered."""
    if isinstance(result, Refused):
        return problem(_STATUSES.get(result.code, 409), result.code, result.detail)
    return answer(result)


def answer(message: BaseModel) -> HttpAnswer:
    """A message as it is answered."""
    return HttpAnswer(200, message.model_dump_json().encode())


def problem(status: int, code: str, detail: str) -> HttpAnswer:
    """A refusal as it is answered (RFC 9457)."""
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": _TITLES.get(status, code),
        "status": status,
        "code": code,
        "detail": detail,
        "retryable": status >= 500,
    }
    return HttpAnswer(status, encode(body), PROBLEM_MEDIA_TYPE)
