"""What a search can end with.

SearchError
    SearchRefused        the service does not take it: the key, the address, the query; asking again does not help
    SearchBusy           it has too much to do, or the plan is used up
    SearchUnavailable    it does not answer, or says that it broke
    SearchUnreadable     it answered something else than results

None of them fails a job: the model is told and goes on without.
"""

from __future__ import annotations

from pipeline.errors import RollstreamError


class SearchError(RollstreamError):
    """A search without results, for a reason of the service's. The message is the model's to read: it names neither address nor key."""

    can_help_to_retry = False


class SearchRefused(SearchError):
    """The service does not take the search.

    Args:
        status: its answer.
        why: what it said, cut.
    """

    def __init__(self, status: int, why: str) -> None:
        super().__init__(f"the search service refused it (status {status}{f': {why}' if why else ''})")
        self.status = status


class SearchBusy(SearchError):
    """The service has too much to do.

    Args:
        status: its answer.
        retry_after_s: the pause it asks for; None = it names none.
    """

    can_help_to_retry = True

    def __init__(self, status: int, retry_after_s: float | None) -> None:
        super().__init__(f"the search service is busy (status {status})")
        self.status = status
        self.retry_after_s = retry_after_s


class SearchUnavailable(SearchError):
    """The service did not answer, or broke."""

    can_help_to_retry = True


class SearchUnreadable(SearchError):
    """The service answered something else than results."""
