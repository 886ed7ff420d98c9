"""A search service that searches a folder of documents: for nodes without a way out, for tests, and for runs that must not change.

    python -m workers.tools.offline_search FOLDER --port 8900

It answers as Tavily does (`workers/tools/search`), so a worker finds it by its `[search]` settings like any other.
"""

from workers.tools.offline_search.index import Document, Index, read_folder
from workers.tools.offline_search.server import OfflineSearch

__all__ = ["Document", "Index", "OfflineSearch", "read_folder"]
