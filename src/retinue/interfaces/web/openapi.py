"""The description of the API in OpenAPI's format, from the routes that the server has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from retinue.interfaces.view.run_output import without_examples
from retinue.interfaces.web.server import Error, Route
from retinue.version import VERSION

PATH_PARAMETERS = {
    "run": "Id of a run, or its first letters",
    "agent": "Id of an agent, such as a2",
}


def describe(routes: Sequence[Route]) -> dict[str, Any]:
    types = [kind for route in routes for kind in (route.answer, route.body) if kind is not None]
    schemas, components = msgspec.json.schema_components(
        [*types, Error], ref_template="#/components/schemas/{name}"
    )
    by_type = dict(zip(map(repr, [*types, Error]), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_type)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "retinue",
            "version": VERSION,
            "description": "Runs of one project: what agents do, and commands to them. Send the"
            " token that the server printed as `Authorization: Bearer TOKEN`.",
        },
        "paths": paths,
        "components": {
            "schemas": without_examples(components),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(route: Route, by_type: dict[str, dict[str, Any]]) -> dict[str, Any]:
    in_path = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": PATH_PARAMETERS[name],
            "schema": {"type": "string"},
        }
        for name in re.findall(r"\{(\w+)\}", route.path)
    ]
    in_query = [
        {
            "name": parameter.name,
            "in": "query",
            "description": parameter.summary,
            "schema": {"type": "integer" if parameter.type is int else "string"},
        }
        for parameter in route.parameters
    ]
    words = re.findall(r"\w+", route.path.removeprefix("/api/"))
    operation: dict[str, Any] = {
        "operationId": "_".join([route.method.lower(), *words]),
        "summary": route.summary,
        "parameters": in_path + in_query,
        "responses": {
            "200": {
                "description": route.summary,
                "content": {route.content_type: {"schema": by_type[repr(route.answer)]}},
            },
            "default": {
                "description": "What went wrong, in one sentence",
                "content": {"application/json": {"schema": by_type[repr(Error)]}},
            },
        },
    }
    if route.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": by_type[repr(route.body)]}},
        }
    return operation
