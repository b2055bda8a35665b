"""What the pages' forms do. Each ends with a redirect, or for the page's script with a few words of JSON."""

from collections.abc import Mapping
from typing import Literal, cast

from pydantic import ValidationError
from starlette.responses import JSONResponse, RedirectResponse, Response

from turnkeeper.domain.errors import ProblemCode
from turnkeeper.kit.ids import is_id, new_id
from turnkeeper.kit.text import clean
from turnkeeper.services import conversations, sessions, users
from turnkeeper.services.answers import NotFound
from turnkeeper.services.cancel import cancel
from turnkeeper.services.idempotency import IdempotencyKey, request_key
from turnkeeper.services.submit import submit
from turnkeeper.web.desk import Desk, Visit, problem_json
from turnkeeper.web.forms import local_path
from turnkeeper.web.pages import Pages
from turnkeeper.web.problems import PageProblem, page_problem, problem_of
from turnkeeper.wire.public import Conversation, MePatch, NewConversation, NewMessage, Submitted


class Posts:
    """The handlers."""

    def __init__(self, desk: Desk, pages: Pages) -> None:
        self._desk = desk
        self._pages = pages
        self._services = desk.services

    async def create(self, visit: Visit) -> Response:
        """A new conversation."""
        agent, title, workdir = (visit.form.get(name, "").strip() for name in ("agent", "title", "workdir"))
        try:
            if "\0" in workdir:
                raise ValueError("workdir holds a NUL")
            wanted = NewConversation(agent=clean(agent), title=clean(title), workdir=workdir or None)
        except (ValidationError, ValueError):
            problem = page_problem(422, ProblemCode.BAD_REQUEST, visit.owner.tongue, "agent, title or workdir")
            return await self._pages.list_with(visit, visit.form, problem)
        key = _key(visit, "page conversations", wanted.model_dump(mode="json"))
        made = await conversations.create(self._services, visit.owner, wanted, key)
        if isinstance(made, Conversation):
            return _to(f"/conversations/{made.thread_id}")
        return await self._pages.list_with(visit, visit.form, problem_of(made, visit.owner.tongue))

    async def send(self, visit: Visit) -> Response:
        """A message."""
        thread_id: str = visit.request.path_params["thread_id"]
        message = NewMessage(text=clean(visit.form.get("text", "")))
        key = _key(visit, "page messages", {"thread_id": thread_id, "text": message.text})
        made = await submit(self._services, visit.owner, thread_id, message, key)
        if isinstance(made, Submitted):
            if visit.wants_json:
                return JSONResponse({"run_id": made.run.id, "next_key": new_id()}, 201, {"cache-control": "no-store"})
            return _to(f"/conversations/{thread_id}#turn-{made.run.id}")
        problem = problem_of(made, visit.owner.tongue)
        if visit.wants_json:
            return problem_json(problem)
        if isinstance(made, NotFound):
            return await self._desk.refuse(visit, problem)
        return await self._pages.conversation_with(visit, visit.form, problem)

    async def cancel(self, visit: Visit) -> Response:
        """Ask a run to stop."""
        run = await cancel(self._services, visit.owner, visit.request.path_params["run_id"])
        if isinstance(run, NotFound):
            return await self._desk.refuse(visit, problem_of(run, visit.owner.tongue))
        if visit.wants_json:
            return JSONResponse({"status": run.status}, 200, {"cache-control": "no-store"})
        return _to(f"/conversations/{run.thread_id}#turn-{run.id}")

    async def close(self, visit: Visit) -> Response:
        """Close a conversation for good."""
        closed = await conversations.close(self._services, visit.owner, visit.request.path_params["thread_id"])
        if isinstance(closed, NotFound):
            return await self._desk.refuse(visit, problem_of(closed, visit.owner.tongue))
        return _to(f"/conversations/{closed.thread_id}")

    async def language(self, visit: Visit) -> Response:
        """The owner's language, for the pages and for every sentence that is written from now on."""
        wanted = visit.form.get("language")
        if wanted not in {"en", "zh"}:
            problem = PageProblem(422, ProblemCode.BAD_REQUEST, visit.texts.page_expired, "language")
            return await self._desk.refuse(visit, problem)
        patch = MePatch(language=cast("Literal['en', 'zh']", wanted))
        await users.set_language(self._services, visit.owner, patch)
        return _to(local_path(visit.form.get("back", "")))

    async def logout(self, visit: Visit) -> Response:
        """End the session."""
        await sessions.end_session(self._services, visit.session)
        return self._desk.signed_out(visit)


def _key(visit: Visit, route: str, body: Mapping[str, object]) -> IdempotencyKey | None:
    """A form that is sent twice does its work once: its key was drawn when it was shown."""
    key = visit.form.get("key", "")
    return request_key(route, key, dict(body)) if is_id(key) else None


def _to(path: str) -> Response:
    return RedirectResponse(path, 303, {"cache-control": "no-store"})
