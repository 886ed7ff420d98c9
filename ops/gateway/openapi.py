"""The OpenAPI document, made of the table of routes and of the requests' own models."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ops.gateway.access import Access
from ops.gateway.bodies import MAX_SCHEMA
from ops.gateway.routes import Route

VERSION = "3.1.0"
TYPES = {"wait_s": "number", "index": "integer"}
"""Of parameters; the others are texts."""
REFUSAL = {
    "type": "object",
    "required": ["detail", "error"],
    "properties": {
        "detail": {"type": "string", "description": "a sentence that says what to do"},
        "error": {"type": "string", "description": "a word for programs"},
        "field": {"type": "string", "description": "what in the request it is about"},
        "retry_after_s": {"type": "number", "description": "when the same request may do better"},
    },
}


def openapi(routes: Sequence[Route]) -> dict[str, object]:
    """The document."""
    schemas: dict[str, object] = {"Refusal": REFUSAL}
    paths: dict[str, dict[str, object]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": VERSION,
        "info": {"title": "Rollstream gateway", "version": str(MAX_SCHEMA), "description": "Rollouts for RL of multi-turn agents."},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(route: Route, schemas: dict[str, object]) -> dict[str, object]:
    operation: dict[str, object] = {
        "summary": route.about,
        "operationId": re.sub(r"\W+", "_", f"{route.method}{route.path}".lower()).strip("_"),
        "tags": ["original" if route.is_original else "rollstream"],
        "parameters": [
            *(_parameter("path", name, "", required=True) for name in re.findall(r"\{(\w+)\}", route.path)),
            *(_parameter("query", name, about) for name, about in route.query.items()),
            *(_parameter("header", name, about) for name, about in route.headers.items()),
        ],
        "responses": {str(code): _answer(code, about) for code, about in _codes(route).items()},
    }
    if route.access is not Access.OPEN:
        operation["security"] = [{"token": []}]
        operation["x-role"] = route.access.name.lower()
    if route.body is not None:
        name = route.body.__name__
        schema = route.body.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schema.pop("$defs", {}))
        schemas[name] = schema
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}}
    return operation


def _codes(route: Route) -> Mapping[int, str]:
    if route.access is Access.OPEN:
        return route.codes
    return dict(sorted({**route.codes, 401: "no token that is known", 403: "a token of a role that may not"}.items()))


def _parameter(where: str, name: str, about: str, *, required: bool = False) -> dict[str, object]:
    return {"in": where, "name": name, "required": required, "description": about, "schema": {"type": TYPES.get(name, "string")}}


def _answer(code: int, about: str) -> dict[str, object]:
    if code < 400:
        return {"description": about}
    return {"description": about, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}}


__all__ = ["openapi"]
