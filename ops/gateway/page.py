"""The page for people at `/docs`: one document, nothing loaded from elsewhere, no script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ops.gateway.access import Access
from ops.gateway.routes import Route

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}"
    "h2{margin-top:2rem}section{border-top:1px solid #ddd;padding:.6rem 0}code{background:#f3f3f3;padding:.1rem .3rem}"
    "b{display:inline-block;min-width:4.5rem}table{border-collapse:collapse;font-size:13px}"
    "td{padding:.1rem .8rem .1rem 0;vertical-align:top}"
)
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Sent with it: even if something of a client's came into the page, nothing of it would run or load."""


def docs_page(routes: Sequence[Route], run: str) -> str:
    """The page."""
    parts = [_section(route) for route in routes]
    cut = next(number for number, route in enumerate(routes) if not route.is_original)
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Rollstream gateway</title>"
        f"<style>{STYLE}</style><h1>Rollstream gateway</h1><p>Run <code>{escape(run)}</code>."
        " For programs: <a href=/openapi.json>/openapi.json</a>."
        " Every refusal is <code>{&quot;detail&quot;: ..., &quot;error&quot;: ...}</code>.</p>"
        f"<h2>Routes of the original</h2>{''.join(parts[:cut])}<h2>Our own</h2>{''.join(parts[cut:])}</html>"
    )


def _section(route: Route) -> str:
    who = "anybody" if route.access is Access.OPEN else route.access.name.lower()
    rows = [("body", name, _field(about)) for name, about in _fields(route)]
    rows += [("query", name, about) for name, about in route.query.items()] + [
        ("header", name, about) for name, about in route.headers.items()
    ]
    rows += [("answer", str(code), about) for code, about in route.codes.items()]
    table = "".join(f"<tr><td>{kind}<td><code>{escape(name)}</code><td>{escape(about)}" for kind, name, about in rows)
    return (
        f"<section><b>{route.method}</b><code>{escape(route.path)}</code> ({who})<br>{escape(route.about)}<table>{table}</table></section>"
    )


def _fields(route: Route) -> list[tuple[str, object]]:
    if route.body is None:
        return []
    route.body.model_rebuild()
    return [(name, info.default if not info.is_required() else "needed") for name, info in route.body.model_fields.items()]


def _field(default: object) -> str:
    if default == "needed":
        return "needed"
    return f"default {default!r}" if isinstance(default, str | int | float | bool) or default is None else "optional"


__all__ = ["POLICY", "docs_page"]
