"""The mark of objects whose methods belong on the event loop of their client; everything else that a client gives out is a value."""

from __future__ import annotations


class OnLoop:
    """The blocking facade (`blocking.py`) stands for objects of this kind, and passes values as they are."""

    __slots__ = ()
