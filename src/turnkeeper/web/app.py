"""The owner's pages as an ASGI application.

    GET  /login?token=…          a one-time link: opens a session (an http-only, same-site cookie)
    GET  /conversations          POST /conversations
    GET  /conversations/{id}     POST /conversations/{id}/messages, …/close
    GET  /runs/{id}              POST /runs/{id}/cancel
    POST /language, /logout      GET  /static/{file}

Pages are whole without JavaScript; the script adds what is live. Every page asks for the session anew, so that signing out
holds at once.
"""

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from turnkeeper.services import sessions
from turnkeeper.services.context import Services
from turnkeeper.web.desk import Desk, Endpoint
from turnkeeper.web.pages import Pages
from turnkeeper.web.posts import Posts
from turnkeeper.web.settings import WebSettings

_TOKEN_CHARS_MAX = 512


def create_pages(services: Services, settings: WebSettings | None = None) -> ASGIApp:
    """The application, for `turnkeeper.api.app.create_app`."""
    desk = Desk(services, settings or WebSettings())
    pages = Pages(desk)
    posts = Posts(desk, pages)
    return Router(
        routes=[
            Route("/", _to_conversations, methods=["GET"]),
            Route("/login", _login(desk), methods=["GET"]),
            Route("/static/{name}", desk.static, methods=["GET"]),
            Route("/conversations", desk.page(pages.conversations), methods=["GET"]),
            Route("/conversations", desk.post(posts.create), methods=["POST"]),
            Route("/conversations/{thread_id}", desk.page(pages.conversation), methods=["GET"]),
            Route("/conversations/{thread_id}/messages", desk.post(posts.send), methods=["POST"]),
            Route("/conversations/{thread_id}/close", desk.post(posts.close), methods=["POST"]),
            Route("/runs/{run_id}", desk.page(pages.run), methods=["GET"]),
            Route("/runs/{run_id}/cancel", desk.post(posts.cancel), methods=["POST"]),
            Route("/language", desk.post(posts.language), methods=["POST"]),
            Route("/logout", desk.post(posts.logout), methods=["POST"]),
        ],
        redirect_slashes=False,
        default=desk.no_such_page,
    )


async def _to_conversations(_request: Request) -> Response:
    return RedirectResponse("/conversations", 303)


def _login(desk: Desk) -> Endpoint:
    async def login(request: Request) -> Response:
        token = request.query_params.get("token", "")
        looks_ahead = "prefetch" in (request.headers.get("sec-purpose", "") + request.headers.get("purpose", ""))
        if request.method == "HEAD" or looks_ahead or not 0 < len(token) <= _TOKEN_CHARS_MAX:
            # What only looks ahead must not use up the link.
            return await desk.sign_in(request)
        session = await sessions.open_link(desk.services, token)
        if session is not None:
            return desk.signed_in(request, session)
        if await desk.is_signed_in(request):
            return RedirectResponse("/conversations", 303)  # the same link opened again in the same browser
        return await desk.sign_in(request, link_was_used=True)

    return login
