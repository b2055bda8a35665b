"""The pages that only show."""

from typing import Any

from starlette.responses import Response

from turnkeeper.domain.errors import ProblemCode
from turnkeeper.kit.ids import is_id
from turnkeeper.services import agents, conversations, runs
from turnkeeper.services.answers import NotFound
from turnkeeper.web.desk import Desk, Visit
from turnkeeper.web.problems import PageProblem, page_problem, problem_of
from turnkeeper.web.turns import read_page, turn_of

_CONVERSATIONS_PER_PAGE = 30


class Pages:
    """The list, one conversation, one run."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def conversations(self, visit: Visit) -> Response:
        """All conversations, newest first, and the form for a new one."""
        return await self.list_with(visit, {}, None)

    async def list_with(self, visit: Visit, filled: dict[str, str], problem: PageProblem | None) -> Response:
        """The list; after a refused form with what was filled in, and why it was refused."""
        cursor = visit.request.query_params.get("cursor")
        if cursor is not None and not is_id(cursor):
            return await self._bad_place(visit, "cursor")
        services = self._desk.services
        found, following = await conversations.list_(
            services, visit.owner, limit=_CONVERSATIONS_PER_PAGE, before=cursor
        )
        known = await agents.list_agents(services)
        values: dict[str, Any] = {
            "conversations": found,
            "cursor": cursor,
            "next": following,
            "available": [agent for agent in known if agent.available],
            "unavailable": [agent for agent in known if not agent.available],
            "filled": filled,
        }
        return await self._desk.show(visit, "conversations.html", values, problem=problem)

    async def conversation(self, visit: Visit) -> Response:
        """One conversation, live where it is the newest page."""
        return await self.conversation_with(visit, {}, None)

    async def conversation_with(self, visit: Visit, filled: dict[str, str], problem: PageProblem | None) -> Response:
        """The same; after a refused form with what was filled in, and why it was refused."""
        before = visit.request.query_params.get("before")
        if before is not None and not is_id(before):
            return await self._bad_place(visit, "before")
        thread_id = visit.request.path_params["thread_id"]
        limit = self._desk.settings.turns_per_page
        page = await read_page(self._desk.services, visit.owner, thread_id, before=before, limit=limit)
        if isinstance(page, NotFound):
            return await self._desk.refuse(visit, problem_of(page, visit.owner.tongue))
        values: dict[str, Any] = {
            "conversation": page.conversation,
            "turns": page.turns,
            "after": page.after,
            "seq": page.seq,
            "earlier": page.earlier,
            "is_newest": before is None,
            "script_texts": visit.texts.script(),
            "statuses": visit.texts.statuses(),
            "filled": filled,
        }
        return await self._desk.show(visit, "conversation.html", values, problem=problem)

    async def run(self, visit: Visit) -> Response:
        """One run with its attempts."""
        found = await runs.get_run(self._desk.services, visit.owner, visit.request.path_params["run_id"])
        if isinstance(found, NotFound):
            return await self._desk.refuse(visit, problem_of(found, visit.owner.tongue))
        return await self._desk.show(visit, "run.html", {"one": await turn_of(self._desk.services, found, None)})

    async def _bad_place(self, visit: Visit, field: str) -> Response:
        detail = f"{field} is not a place in this list"
        return await self._desk.refuse(visit, page_problem(400, ProblemCode.BAD_REQUEST, visit.owner.tongue, detail))
