"""Sizes as people write them on a command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ops.node.sizes import Size
from pipeline.errors import InvalidRequest
from pipeline.messages import Stage


def read_sizes(words: Sequence[str]) -> Mapping[Stage, Size]:
    """Reads `run=96 eval=2x4`.

    Raises:
        InvalidRequest: a word is no stage and size, or a stage is there twice.
    """
    found: dict[Stage, Size] = {}
    for word in words:
        name, equals, text = word.partition("=")
        stage = next((stage for stage in Stage if stage.value == name.lower()), None)
        if stage is None or not equals:
            raise InvalidRequest(f"{word!r}: expected init=SIZE, run=SIZE or eval=SIZE, such as run=96 or run=3x32")
        if stage in found:
            raise InvalidRequest(f"{stage.value} is there twice")
        found[stage] = Size.parse(text)
    return found
