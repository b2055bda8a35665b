"""Who is asking, over HTTP: a bearer token in `Authorization`, or for reading a browser's session cookie.

Keys, sessions and host tokens are looked up by their SHA-256, at every request: a revoked one opens nothing from the next
request on, and there is no cache that could keep it alive. A worker's token cannot be revoked or replaced once its attempt
is accepted, and from then on is looked up once. No token is ever compared byte by byte with a stored one.
"""

from typing import assert_never

from starlette.requests import Request
from starlette.types import Scope

from turnkeeper.api.guard import is_outage
from turnkeeper.api.languages import set_language
from turnkeeper.api.problems import ProblemRaised
from turnkeeper.domain.errors import ProblemCode
from turnkeeper.services import auth, sessions
from turnkeeper.services.auth import NoSuchJob, OtherJob, Owner, UnknownToken, Worker
from turnkeeper.services.context import Services
from turnkeeper.wire.public import session_cookie

TOKEN_BYTES_MAX = 512
_SAFE_METHODS = frozenset({"GET", "HEAD"})


def bearer_token(scope: Scope, what: str) -> str:
    """The token of the request. `what` is wanted, such as `an API key`; `ProblemRaised` (401) where there is none."""
    header = next((value for name, value in scope["headers"] if name == b"authorization"), None)
    if header is None:
        raise unauthorized(f"{what} is needed: Authorization: Bearer …")
    kind, _, token = header.decode("latin-1").partition(" ")
    token = token.strip()
    if kind.lower() != "bearer" or not token or len(token) > TOKEN_BYTES_MAX:
        raise unauthorized(f"Authorization is not of the form: Bearer TOKEN, with {what}")
    return token


def unauthorized(detail: str) -> ProblemRaised:
    """401."""
    return ProblemRaised(ProblemCode.UNAUTHORIZED, detail)


async def owner_of_request(services: Services, request: Request) -> Owner:
    """The owner, by API key, or by session where the request only reads.

    A session never authorises a write here: a browser sends its cookie with requests that other pages made. The pages
    have forms of their own, which carry a CSRF token.
    """
    if "authorization" not in request.headers and request.method in _SAFE_METHODS:
        cookie = request.cookies.get(session_cookie(request.headers.get("host", "")))
        owner = None if cookie is None else await sessions.owner_of_session(services, cookie[:TOKEN_BYTES_MAX])
        if cookie is not None and owner is None:
            raise unauthorized("the session has ended: sign in again, or use Authorization: Bearer with an API key")
    else:
        owner = None
    if owner is None:
        owner = await auth.owner_of_key(services, bearer_token(request.scope, "an API key"))
    if owner is None:
        raise unauthorized("the key is unknown or was revoked")
    set_language(request.scope, owner.tongue)
    return owner


async def still_opens(services: Services, request: Request) -> bool:
    """Whether the key or session of a long request still opens anything. An outage of the database takes nothing away."""
    try:
        await owner_of_request(services, request)
    except ProblemRaised:
        return False
    except Exception as failure:
        if not is_outage(failure):
            raise
    return True


async def admin_of_request(services: Services, request: Request) -> Owner:
    """The owner, who must be an administrator. `ProblemRaised` 401 or 403."""
    owner = await owner_of_request(services, request)
    if not owner.is_admin:
        raise ProblemRaised(ProblemCode.FORBIDDEN, f"{owner.name} is an owner; an administrator's key is needed")
    return owner


async def host_of_request(services: Services, request: Request) -> str:
    """The name of the host whose token this is. `ProblemRaised` (401)."""
    host = await auth.host_of_token(services, bearer_token(request.scope, "a host token"))
    if host is None:
        raise unauthorized("the host token is unknown or was revoked")
    return host


async def worker_of_request(services: Services, request: Request) -> Worker:
    """The worker of the job that the path names. Unknown token 401, another job's 403, no such job 404."""
    found = await auth.worker_of_token(
        services, bearer_token(request.scope, "a worker token"), request.path_params["job"]
    )
    match found:
        case Worker():
            return found
        case UnknownToken():
            raise unauthorized("the worker token is unknown")
        case OtherJob():
            raise ProblemRaised(ProblemCode.FORBIDDEN, "the worker token is of another job")
        case NoSuchJob():
            raise ProblemRaised(ProblemCode.NOT_FOUND, "there is no such job")
        case _:
            assert_never(found)
