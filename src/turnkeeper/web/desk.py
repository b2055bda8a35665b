"""What all pages have in common: whose session it is, the form that was sent, and the answer."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from turnkeeper.domain.errors import Language, ProblemCode
from turnkeeper.kit.ids import new_id
from turnkeeper.services import sessions
from turnkeeper.services.auth import Owner
from turnkeeper.services.context import Services
from turnkeeper.web.forms import FormRefused, csrf_token, read_form
from turnkeeper.web.problems import PageProblem, page_problem
from turnkeeper.web.render import Renderer, StaticFiles, page_response
from turnkeeper.web.settings import WebSettings
from turnkeeper.web.texts import Texts
from turnkeeper.wire.problem import PROBLEM_MEDIA_TYPE, Problem
from turnkeeper.wire.public import session_cookie

LINK_COMMAND = "turnkeeper login"
_SECRET_CHARS_MAX = 512


@dataclass(frozen=True)
class Visit:
    """A request with its session: who is here, and the form that was sent (empty for a page)."""

    request: Request
    owner: Owner
    session: str
    form: dict[str, str]

    @property
    def texts(self) -> Texts:
        """In the owner's language."""
        return Texts(self.owner.tongue)

    @property
    def wants_json(self) -> bool:
        """Whether the page's script asks, and not the browser itself."""
        return "application/json" in self.request.headers.get("accept", "")


Handler = Callable[[Visit], Awaitable[Response]]
Endpoint = Callable[[Request], Awaitable[Response]]


class Desk:
    """Opens visits and gives answers."""

    def __init__(self, services: Services, settings: WebSettings) -> None:
        self.services = services
        self.settings = settings
        self._files = StaticFiles()
        self._renderer = Renderer(self._files.version)

    def page(self, handler: Handler) -> Endpoint:
        """An endpoint for a page that only shows."""

        async def endpoint(request: Request) -> Response:
            secret, owner = await self._session(request)
            if owner is None:
                return await self.sign_in(request)
            return await handler(Visit(request, owner, secret, {}))

        return endpoint

    def post(self, handler: Handler) -> Endpoint:
        """An endpoint for one of our own forms."""

        async def endpoint(request: Request) -> Response:
            secret, owner = await self._session(request)
            if owner is None:
                return await self.sign_in(request)
            try:
                form = await read_form(request, secret, self.settings.form_bytes_max)
            except FormRefused as refused:
                return await self._refuse_form(Visit(request, owner, secret, {}), refused)
            return await handler(Visit(request, owner, secret, form))

        return endpoint

    async def show(
        self, visit: Visit, template: str, values: dict[str, Any], *, problem: PageProblem | None = None
    ) -> Response:
        """A page for somebody who is signed in."""
        path: str = visit.request.scope["path"]
        query = str(visit.request.query_params)
        common: dict[str, Any] = {
            "text": visit.texts,
            "owner": visit.owner,
            "csrf": csrf_token(visit.session),
            "here": path + (f"?{query}" if query else ""),
            "form_key": new_id(),
            "problem": problem,
        }
        # In a thread: agents' texts are rendered here, which can take a tenth of a second.
        html = await asyncio.to_thread(self._renderer.html, template, {**common, **values})
        return page_response(html, 200 if problem is None else problem.status)

    async def refuse(self, visit: Visit, problem: PageProblem) -> Response:
        """A refusal that has no page of its own to be shown on."""
        if visit.wants_json:
            return problem_json(problem)
        values = {"heading": problem.title, "lead": problem.detail, "command": None}
        html = self._renderer.html(
            "message.html", {**values, "text": visit.texts, "owner": visit.owner, **_frame(visit)}
        )
        return page_response(html, problem.status)

    async def sign_in(self, request: Request, *, link_was_used: bool = False) -> Response:
        """The page for somebody who is not signed in."""
        language = browser_language(request)
        if "application/json" in request.headers.get("accept", ""):
            return problem_json(page_problem(401, ProblemCode.UNAUTHORIZED, language))
        text = Texts(language)
        lead = text.link_used if link_was_used else text.login_how
        return page_response(self._plain(text, text.login_needed, lead, LINK_COMMAND), 401)

    def signed_out(self, visit: Visit) -> Response:
        """The page after signing out."""
        response = page_response(self._plain(visit.texts, visit.texts.signed_out, visit.texts.login_how, LINK_COMMAND))
        response.delete_cookie(self.cookie_name(visit.request), path="/", httponly=True, samesite="lax")
        return response

    def signed_in(self, request: Request, secret: str) -> Response:
        """To the front page, with the session's cookie."""
        response = RedirectResponse("/conversations", 303, {"cache-control": "no-store"})
        response.set_cookie(
            self.cookie_name(request),
            secret,
            max_age=int(sessions.SESSION_LIFETIME_S),
            path="/",
            secure=self.settings.cookie_secure,
            httponly=True,
            samesite="lax",
        )
        return response

    async def static(self, request: Request) -> Response:
        """A file of the pages."""
        found = self._files.response(request.path_params["name"], request.query_params.get("v"))
        return found if found is not None else self._not_found(request)

    async def no_such_page(self, scope: Scope, receive: Receive, send: Send) -> None:
        """404 for a path that no route has."""
        await self._not_found(Request(scope, receive))(scope, receive, send)

    @staticmethod
    def cookie_name(request: Request) -> str:
        """The session's cookie at the address that the browser uses."""
        return session_cookie(request.headers.get("host", ""))

    async def is_signed_in(self, request: Request) -> bool:
        """Whether the request comes with a session that has not ended."""
        return (await self._session(request))[1] is not None

    async def _session(self, request: Request) -> tuple[str, Owner | None]:
        secret = request.cookies.get(self.cookie_name(request), "")[:_SECRET_CHARS_MAX]
        return secret, (await sessions.owner_of_session(self.services, secret) if secret else None)

    async def _refuse_form(self, visit: Visit, refused: FormRefused) -> Response:
        if refused.too_large:
            return await self.refuse(visit, page_problem(413, ProblemCode.TOO_LARGE, visit.owner.tongue))
        title = visit.texts.page_expired
        return await self.refuse(visit, PageProblem(403, ProblemCode.FORBIDDEN, title, ""))

    def _not_found(self, request: Request) -> Response:
        language = browser_language(request)
        if "text/html" not in request.headers.get("accept", ""):
            return problem_json(page_problem(404, ProblemCode.NOT_FOUND, language, "there is nothing at this path"))
        text = Texts(language)
        return page_response(self._plain(text, text.not_found, None, None), 404)

    def _plain(self, text: Texts, heading: str, lead: str | None, command: str | None) -> str:
        values = {"text": text, "heading": heading, "lead": lead, "command": command}
        return self._renderer.html("message.html", values)


def _frame(visit: Visit) -> dict[str, Any]:
    return {"csrf": csrf_token(visit.session), "here": "/conversations"}


def problem_json(problem: PageProblem) -> Response:
    """A refusal for the page's script, as the API says one."""
    said = Problem(title=problem.title, status=problem.status, code=problem.code.value, detail=problem.detail)
    return JSONResponse(
        said.model_dump(mode="json"), problem.status, {"cache-control": "no-store"}, media_type=PROBLEM_MEDIA_TYPE
    )


def browser_language(request: Request) -> Language:
    """What the browser asks for, before we know the owner."""
    for part in request.headers.get("accept-language", "").split(",")[:10]:
        code = part.split(";", 1)[0].strip().lower()[:2]
        if code in {"en", "zh"}:
            return Language(code)
    return Language.EN
