"""Where a process finds the search service."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from pipeline.settings import ENVIRONMENT_PREFIX, TableSettings


class SearchSettings(TableSettings):
    """The search service of a worker. A job can ask for the tool, and has no say in where it goes."""

    table = "search"
    variables = f"{ENVIRONMENT_PREFIX}SEARCH_"

    url: str = ""
    """`https://api.tavily.com`, or whatever answers to `POST /search` in the same way; empty = this worker has no search."""
    key_file: Path | None = None
    """File with the key, sent as a bearer token; read at each start."""
    proxy: str = ""
    """`http://HOST:PORT` by which the service is reached; empty = directly. Proxies of the environment are not used."""
    timeout_s: float = Field(default=10.0, gt=0, le=300)
    """For one try; all of them together have the time of a tool call."""
    tries: int = Field(default=3, ge=1, le=10)
    max_results: int = Field(default=5, ge=1, le=20)
    """Hits of one search at most, and as long as the model does not ask for fewer."""
    max_hit_chars: int = Field(default=2_000, ge=100, le=20_000)
    """Of the text of one hit."""

    @field_validator("url", "proxy")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        parts = urlsplit(url)
        if url and (parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username):
            raise ValueError(f"expected http://HOST or https://HOST, with a path or none, got {url!r}")
        return url.rstrip("/")
