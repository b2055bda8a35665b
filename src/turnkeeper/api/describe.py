"""The description of the owner API (OpenAPI): what FastAPI cannot know, because bodies and answers are ours to read and write.

Handlers take the request and give an answer; the decorators' arguments made here say what both look like.
"""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from turnkeeper import __version__
from turnkeeper.wire.problem import PROBLEM_MEDIA_TYPE, Problem
from turnkeeper.wire.public import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX

_REF = "#/components/schemas/{model}"
_models: dict[str, type[BaseModel]] = {"Problem": Problem}

_IDEMPOTENCY_KEY: Mapping[str, Any] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Up to 255 bytes. The same key and body again: the stored answer. Another body: 422.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}
_LIMIT: Mapping[str, Any] = {
    "name": "limit",
    "in": "query",
    "required": False,
    "schema": {"type": "integer", "minimum": 1, "maximum": PAGE_SIZE_MAX, "default": PAGE_SIZE_DEFAULT},
}
_CURSOR: Mapping[str, Any] = {
    "name": "cursor",
    "in": "query",
    "required": False,
    "description": "`next` of the page before.",
    "schema": {"type": "string"},
}
_AFTER: Mapping[str, Any] = {
    "name": "after",
    "in": "query",
    "required": False,
    "description": "Events with a greater sequence number. The header `Last-Event-ID` does the same, and wins.",
    "schema": {"type": "integer", "minimum": 0},
}


def operation(
    summary: str,
    answer: type[BaseModel] | None = None,
    *,
    status: int = 200,
    body: type[BaseModel] | None = None,
    body_schema: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Arguments of a route: one object comes back (or nothing). A `POST` that creates takes an idempotency key."""
    extra: dict[str, Any] = {}
    if body is not None or body_schema is not None:
        schema = _ref(body) if body is not None else dict(body_schema or {})
        extra["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if status == 201:
        extra["parameters"] = [dict(_IDEMPOTENCY_KEY)]
    content = {} if answer is None else {"content": {"application/json": {"schema": _ref(answer)}}}
    return _arguments(summary, status, content, extra)


def page_operation(summary: str, item: type[BaseModel]) -> dict[str, Any]:
    """Arguments of a route that answers a page."""
    schema = {
        "type": "object",
        "required": ["items"],
        "properties": {
            "items": {"type": "array", "items": _ref(item)},
            "next": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
    }
    content = {"content": {"application/json": {"schema": schema}}}
    return _arguments(summary, 200, content, {"parameters": [dict(_LIMIT), dict(_CURSOR)]})


def stream_operation(summary: str, page_item: type[BaseModel] | None = None) -> dict[str, Any]:
    """Arguments of a route that answers an event stream, and where `page_item` is given also a page as JSON."""
    content: dict[str, Any] = {"text/event-stream": {"schema": {"type": "string"}}}
    if page_item is not None:
        content["application/json"] = page_operation("", page_item)["responses"][200]["content"]["application/json"]
    return _arguments(summary, 200, {"content": content}, {"parameters": [dict(_AFTER)]})


def _arguments(summary: str, status: int, content: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "summary": summary,
        "status_code": status,
        "response_model": None,
        "responses": {
            status: {"description": summary, **content},
            "default": {
                "description": "A problem (RFC 9457); `code` is stable.",
                "content": {PROBLEM_MEDIA_TYPE: {"schema": {"$ref": _REF.format(model="Problem")}}},
            },
        },
        "openapi_extra": dict(extra),
    }


def _ref(model: type[BaseModel]) -> dict[str, str]:
    _models[model.__name__] = model
    return {"$ref": _REF.format(model=model.__name__)}


def describe(app: FastAPI) -> dict[str, Any]:
    """The whole description. Made once, at the first request for it."""
    if app.openapi_schema is None:
        document = get_openapi(
            title="Turnkeeper",
            version=__version__,
            summary="Runs AI-agent turns for many owners in retained sandboxes.",
            routes=app.routes,
        )
        _, schemas = models_json_schema([(model, "serialization") for model in _models.values()], ref_template=_REF)
        components = document.setdefault("components", {})
        components["schemas"] = {**components.get("schemas", {}), **schemas.get("$defs", {})}
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer", "description": "An API key, tk_…"}}
        document["security"] = [{"key": []}]
        app.openapi_schema = document
    return app.openapi_schema
