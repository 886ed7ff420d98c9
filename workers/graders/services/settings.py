"""Where a process finds reward services, and what it may ask of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from pipeline.errors import InvalidRequest
from pipeline.settings import read_table

TABLE = "scorers"
PATHS: Mapping[str, str] = {"remote": "/compute_score", "judge": "/v1/chat/completions"}


class ScorerSettings(BaseModel):
    """One reward service: some servers that score alike. A job names it, and has no say in where it goes."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: Literal["remote", "judge"]
    """`remote`: a scorer, `POST /compute_score`; `judge`: a language model, as OpenAI's chat completions."""
    urls: tuple[str, ...] = Field(min_length=1)
    """`http://HOST:PORT` of each server; the least busy one is asked."""
    path: str = ""
    """Behind each address; empty = `/compute_score` or `/v1/chat/completions`."""
    key_file: Path | None = None
    """File with the key, sent as a bearer token; read when the first job asks."""
    proxy: str = ""
    """`http://HOST:PORT` by which the servers are reached; empty = directly. Proxies of the environment are not used."""
    timeout_s: float = Field(default=60.0, gt=0, le=3_600)
    """For one try."""
    tries: int = Field(default=4, ge=1, le=20)
    """Of one score, over all servers: one that failed is asked again last."""
    rest_s: float = Field(default=5.0, ge=0, le=600)
    """How long a server that failed is left alone; doubled for each further failure, up to 60 s."""
    at_once: int = Field(default=64, ge=1, le=10_000)
    """Requests of this process to one server at a time."""
    max_answer_chars: int = Field(default=20_000, ge=1, le=1_000_000)
    """A longer answer scores 0 and is not sent."""
    lowest: float = 0.0
    """Of a remote scorer: what its worst score is; becomes 0."""
    highest: float = 1.0
    """What its best score is; becomes 1."""
    extra_info: bool = True
    """Of a remote scorer: whether the request holds `extra_info` with the question and the prompt's id."""
    model: str = ""
    """Of a judge: the model's name."""
    template_file: Path | None = None
    """Of a judge: what it is told, with places for `{question}`, `{reference}` and `{answer}`; none = our own words."""
    votes: int = Field(default=1, ge=1, le=31)
    """Of a judge: how many verdicts are asked, an odd number; the majority decides."""
    temperature: float = Field(default=0.0, ge=0, le=2)
    """Of a judge; several votes want more than 0."""
    max_tokens: int = Field(default=2_048, ge=1, le=100_000)
    """Of one verdict of a judge, its thoughts included."""

    @field_validator("urls", mode="before")
    @classmethod
    def _as_list(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    @field_validator("urls")
    @classmethod
    def _are_addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
                raise ValueError(f"expected http://HOST or https://HOST, with a path or none, got {url!r}")
        if len(set(urls)) != len(urls):
            raise ValueError("an address stands there twice")
        return tuple(url.rstrip("/") for url in urls)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.lowest >= self.highest:
            raise ValueError("lowest must be below highest")
        if self.votes % 2 == 0:
            raise ValueError("votes: expected an odd number, so that there is a majority")
        if self.kind == "judge" and not self.model:
            raise ValueError("a judge needs the name of its model")
        return self

    @property
    def address_path(self) -> str:
        return self.path or PATHS[self.kind]


def scorers_in(file: Path | None) -> dict[str, ScorerSettings]:
    """The services that `[scorers.NAME]` of a `rollstream.toml` name; default: the one in the current folder, when there is one.

    Raises:
        InvalidRequest: an unknown key or a value that does not fit, with its name.
    """
    found: dict[str, ScorerSettings] = {}
    for name, table in read_table(file, TABLE).items():
        try:
            found[name] = ScorerSettings.model_validate(table)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, (TABLE, name, *first["loc"])))
            raise InvalidRequest(first["msg"].removeprefix("Value error, "), field=where) from error
    return found
