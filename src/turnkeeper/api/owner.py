"""Owner and admin API, `/v1/…` but `/v1/agent/…` (`wire.public`). FastAPI finds and describes the routes.

Bodies are read and answers written by our own code: so each has its bound, each refusal names its field in one line, and a
text that hurts cannot stop a page.
"""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from turnkeeper import __version__
from turnkeeper.api.admin import admin_routes
from turnkeeper.api.conversations import conversation_routes
from turnkeeper.api.describe import describe
from turnkeeper.api.guard import failure_response
from turnkeeper.api.languages import language_of
from turnkeeper.api.metrics import Metrics
from turnkeeper.api.problems import ProblemRaised, from_errors, one_line, problem_response, shown
from turnkeeper.api.settings import ApiSettings
from turnkeeper.api.sse import Streams
from turnkeeper.api.things import thing_routes
from turnkeeper.domain.errors import ProblemCode
from turnkeeper.services.context import Services

_BY_STATUS = {
    400: ProblemCode.BAD_REQUEST,
    401: ProblemCode.UNAUTHORIZED,
    403: ProblemCode.FORBIDDEN,
    404: ProblemCode.NOT_FOUND,
    405: ProblemCode.METHOD_NOT_ALLOWED,
    406: ProblemCode.NOT_ACCEPTABLE,
    413: ProblemCode.TOO_LARGE,
    415: ProblemCode.UNSUPPORTED_MEDIA_TYPE,
}


def create_owner_api(services: Services, settings: ApiSettings, metrics: Metrics, streams: Streams) -> FastAPI:
    """The application. It serves its own description and no page about it: such pages load scripts from elsewhere."""
    app = FastAPI(
        title="Turnkeeper",
        version=__version__,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.include_router(conversation_routes(services, settings, streams))
    app.include_router(thing_routes(services, settings))
    app.include_router(admin_routes(services, settings))

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return JSONResponse(describe(app))

    _answer_failures(app, metrics)
    return app


def _answer_failures(app: FastAPI, metrics: Metrics) -> None:
    async def on_problem(request: Request, failure: Exception) -> Response:
        assert isinstance(failure, ProblemRaised)  # noqa: S101 - registered for it
        return failure.response(language_of(request.scope))

    async def on_invalid(request: Request, failure: Exception) -> Response:
        assert isinstance(failure, RequestValidationError)  # noqa: S101 - registered for it
        return from_errors(failure.errors()).response(language_of(request.scope))

    async def on_http(request: Request, failure: Exception) -> Response:
        assert isinstance(failure, HTTPException)  # noqa: S101 - registered for it
        code = _BY_STATUS.get(failure.status_code, ProblemCode.BAD_REQUEST)
        headers = {name.lower(): value for name, value in (failure.headers or {}).items()}
        return problem_response(
            code, _detail(request, code, failure, headers), language=language_of(request.scope), headers=headers
        )

    async def on_defect(request: Request, failure: Exception) -> Response:
        return failure_response(failure, request.scope, metrics)

    app.add_exception_handler(ProblemRaised, on_problem)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(Exception, on_defect)


def _detail(request: Request, code: ProblemCode, failure: HTTPException, headers: dict[str, Any]) -> str:
    if code is ProblemCode.NOT_FOUND:
        return f"there is nothing at {shown(request.scope['path'])}"
    if code is ProblemCode.METHOD_NOT_ALLOWED:
        return f"{one_line(request.method)} is not possible here; {headers.get('allow', 'another method')} is"
    return one_line(str(failure.detail))
