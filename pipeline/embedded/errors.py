"""What can go wrong with the embedded server, in one class: the text says what was expected, what came and what to do."""

from __future__ import annotations

from pipeline.errors import BrokerError


class EmbeddedServerError(BrokerError):
    """The embedded server cannot be used as asked. A retry helps only when the message says that something is still going on."""
