"""Routers without middleware: unknown paths and methods as problems, everything else as it is."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from turnkeeper.api.problems import ProblemRaised, shown
from turnkeeper.domain.errors import ProblemCode


async def no_such_route(scope: Scope, _receive: Receive, _send: Send) -> None:
    """Raises 404 for a path that no route has."""
    raise ProblemRaised(ProblemCode.NOT_FOUND, f"there is nothing at {shown(scope['path'])}")


def method_not_allowed(method: str, allowed: Sequence[str]) -> ProblemRaised:
    """405, with the methods that are possible."""
    names = ", ".join(sorted(allowed))
    return ProblemRaised(
        ProblemCode.METHOD_NOT_ALLOWED, f"{method} is not possible here; {names} is", headers={"allow": names}
    )


class DirectRoute(Route):
    """A route whose endpoint is called without the two layers that Starlette has for exceptions with handlers: there are
    none, as every problem is answered by the guard around the part."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI. The method is the route's: `PlainRouter` hands on nothing else."""
        response = await self.endpoint(Request(scope, receive, send))
        await response(scope, receive, send)


class PlainRouter:
    """Routes in order. A route that matches but for its method answers 405 if no other one matches."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self._routes = tuple(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        other: Route | None = None
        for route in self._routes:
            match, child = route.matches(scope)
            if match is Match.FULL:
                scope.update(child)
                scope["route"] = route
                await route.handle(scope, receive, send)
                return
            if match is Match.PARTIAL and other is None and isinstance(route, Route):
                other = route
        if other is not None:
            raise method_not_allowed(scope["method"], sorted(other.methods or ()))
        await no_such_route(scope, receive, send)
