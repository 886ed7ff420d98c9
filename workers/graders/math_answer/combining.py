"""Items of a bare list as one answer: conditions, names with their values, or a list."""

from __future__ import annotations

from workers.graders.math_answer.answer import Answer, Conditions, Listing, Named, NamedSet, Quantity, Relation
from workers.graders.math_answer.expression import Node


def combined(items: list[Answer], words: set[str]) -> Answer:
    """Items of a bare list as one answer: conditions, names with their values, or a list."""
    items = [item for item in items if not _is_domain(item)] or items
    if len(items) == 1:
        return items[0]
    if any(isinstance(item, Relation) and not item.is_equation for item in items):
        items = [(_as_point(item) or item) if isinstance(item, Named) else item for item in items]
    if all(isinstance(item, Relation) for item in items) and not all(isinstance(item, Relation) and item.is_equation for item in items):
        return Conditions(
            "or" if "or" in words else "and" if "and" in words else "comma", tuple(item for item in items if isinstance(item, Relation))
        )
    first = items[0]
    if (
        isinstance(first, Named)
        and first.arguments is None
        and len(first.names) == 1
        and not any(item.also for item in items if isinstance(item, Named))
    ):
        named = [item for item in items if isinstance(item, Named)]
        names = [item.names for item in named]
        if len(named) == len(items) and len(set(names)) == len(names) and all(len(one) == 1 for one in names):
            return Named(tuple(one[0] for one in names), None, Listing("round", tuple(item.value for item in named)))
        if all(not isinstance(item, Named) or item.names == first.names for item in items):
            values = tuple(item.value if isinstance(item, Named) else item for item in items)
            return Named(first.names, None, Listing("bare", values))
    if (
        isinstance(first, Named)
        and len(first.names) > 1
        and all(not isinstance(item, Named) or item.names == first.names for item in items)
    ):
        return Named(first.names, None, Listing("bare", tuple(item.value if isinstance(item, Named) else item for item in items)))
    return Listing("bare", tuple(items))


def _as_point(item: Named) -> Relation | None:
    """`x = -1` beside inequalities, as a condition like them."""
    if len(item.names) != 1 or item.arguments is not None or not isinstance(item.value, Quantity):
        return None
    return Relation((Quantity(Node("sym", name=item.names[0])), item.value), ("=",))


def _is_domain(item: Answer) -> bool:
    """`k \\in \\mathbb{Z}` beside a formula with k: it says where a parameter ranges and is no answer of its own."""
    return isinstance(item, Named) and isinstance(item.value, NamedSet) and item.value.name in ("Z", "N", "Z^+", "R")
