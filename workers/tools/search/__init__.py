"""A search service on the web, as Tavily speaks it: who searches, where, and what can go wrong.

SearchSettings    where the service is, and its key
SearchClient      one search, retried within its time
Found             one hit
SearchError       what a search ended with: SearchRefused, SearchBusy, SearchUnavailable, SearchUnreadable
"""

from workers.tools.search.client import Found, SearchClient
from workers.tools.search.errors import SearchBusy, SearchError, SearchRefused, SearchUnavailable, SearchUnreadable
from workers.tools.search.settings import SearchSettings

__all__ = [
    "Found",
    "SearchBusy",
    "SearchClient",
    "SearchError",
    "SearchRefused",
    "SearchSettings",
    "SearchUnavailable",
    "SearchUnreadable",
]
