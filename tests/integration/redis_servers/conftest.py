from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest


@pytest.fixture
def servers() -> Iterator[ExitStack]:
    """What a test enters here has ended afterwards."""
    with ExitStack() as stack:
        yield stack
