"""Pages of lists: `?limit=` and an opaque `?cursor=`, which names the last thing of the page before."""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from turnkeeper.api.problems import ProblemRaised, shown
from turnkeeper.domain.errors import ProblemCode
from turnkeeper.kit.ids import is_id
from turnkeeper.wire.public import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX, Page


@dataclass(frozen=True)
class PageRequest:
    """What a reader asks for: at most `limit` things after the one with the id `last` (None: from the beginning)."""

    limit: int
    last: str | None


def page_request(request: Request) -> PageRequest:
    """From the query. `ProblemRaised` (400) with the name of what is wrong."""
    return PageRequest(limit_of(request.query_params.get("limit")), cursor_id(request.query_params.get("cursor")))


def cursor_id(cursor: str | None) -> str | None:
    """The id in a cursor; None without one."""
    if cursor is None:
        return None
    try:
        text = base64.urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4)).decode("ascii")
    except (binascii.Error, ValueError):
        text = ""
    if not is_id(text):
        raise ProblemRaised(
            ProblemCode.BAD_REQUEST, f"cursor is {shown(cursor)}: give the `next` of the page before", field="cursor"
        )
    return text


def cursor_of(last_id: str) -> str:
    """The cursor that goes on after the thing with this id."""
    return base64.urlsafe_b64encode(last_id.encode("ascii")).decode("ascii").rstrip("=")


def page_response(items: Sequence[BaseModel], next_id: str | None, *, opaque: bool = True) -> Response:
    """A page as an answer. `next_id`: the last id of this page, where there is more (a sequence number: not `opaque`)."""
    page = Page(
        items=tuple(item.model_dump(mode="json") for item in items),
        next=cursor_of(next_id) if next_id is not None and opaque else next_id,
    )
    return Response(page.model_dump_json(), media_type="application/json", headers={"cache-control": "no-store"})


def limit_of(asked: str | None) -> int:
    """The size of a page. `ProblemRaised` (400) for anything but a number within the bounds."""
    if asked is None:
        return PAGE_SIZE_DEFAULT
    if asked.isascii() and asked.isdigit() and 1 <= int(asked[:6]) <= PAGE_SIZE_MAX and len(asked) < 6:
        return int(asked)
    raise ProblemRaised(
        ProblemCode.BAD_REQUEST,
        f"limit is {shown(asked)}: a number from 1 to {PAGE_SIZE_MAX} is expected",
        field="limit",
    )
