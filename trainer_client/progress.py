"""Where a trainer stands in its run: what a checkpoint keeps, and what stands in Redis in case there is none.

- `token` names a point in the history of a run: it changes with every ack of a step. A trainer that resumes with the token that stands in
  Redis goes on; one with any other goes back, and what came after its checkpoint happens again.
- A trainer that resumes with that token, but from weights older than those that were set last, goes back as well: it died between an update
  and the ack of its step, and what the lost weights have sampled since then is nobody's.
- `base` is the incarnation in which the trainer went back last. What a prompt's mark says an earlier one did with it did not happen.
- A prompt is outstanding from just before its push until a step is acked to which a group of it was accounted that settled it: a cancelled
  or dropped group does not, since its prompt is drawn again.
- A trainer that goes on may ack a step before its feed has come to the step's prompts, which an earlier process pushed. Those are settled
  ahead of the feed, which passes over them: a prompt that were outstanding after its ack would be trained again when the trainer goes back.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import orjson
from pydantic import Field

from pipeline.errors import InvalidRequest
from pipeline.keys import PROMPT_ID
from pipeline.requests import Request
from pipeline.supervisor.actions import Verdict
from trainer_client.records import GroupRecord

SCHEMA = 1
SETTLES = (Verdict.INFORMATIVE, Verdict.FILTERED, Verdict.DEAD)
"""Verdicts after which a prompt is not drawn again."""


class FeedState(Request):
    """The part of a state that says how far the data set was fed."""

    epochs: int = Field(ge=1)
    shuffle_seed: int | None = None
    rows: int | None = Field(default=None, ge=0)
    """Length of the data set; none when it has none."""
    epoch: int = Field(default=0, ge=0)
    position: int = Field(default=0, ge=0)
    """Rows of this epoch that were pushed, in the order of the epoch."""
    outstanding: list[str] = Field(default_factory=list)
    """Ids of prompts that were pushed and not settled, in the order of their push."""
    settled_ahead: list[str] = Field(default_factory=list)
    """Ids of prompts at or behind the position that were settled."""


class RunState(Request):
    """A state as it is kept in checkpoints: plain values only."""

    schema_version: int = Field(ge=1)
    run: str
    token: str = Field(min_length=1, max_length=64)
    base: int = Field(default=0, ge=0)
    next_step: int | None = Field(default=None, ge=0)
    version: int | None = Field(default=None, ge=0)
    """Number of the policy version that was set last."""
    feed: FeedState | None = None


@dataclass(slots=True)
class FeedProgress:
    """How far a data set was fed."""

    epochs: int
    shuffle_seed: int | None
    rows: int | None
    epoch: int = 0
    position: int = 0
    outstanding: dict[str, None] = field(default_factory=dict)
    """In the order of their push."""
    settled_ahead: dict[str, None] = field(default_factory=dict)
    """Settled, and not come to yet."""

    def come_to(self, prompt: str, epoch: int, position: int) -> bool:
        """The feed has come to a prompt, which is outstanding from here on; False = it was settled already, and is passed over.

        Args:
            position: -1 = it is one of those that were outstanding when the feed began.
        """
        if position < 0:
            return prompt in self.outstanding
        self.epoch, self.position = epoch, position
        if prompt in self.settled_ahead:
            del self.settled_ahead[prompt]
            return False
        self.outstanding[prompt] = None
        return True

    def settle(self, prompt: str) -> None:
        """A prompt is done with, for good in this history."""
        if prompt in self.outstanding:
            del self.outstanding[prompt]
        else:
            self.settled_ahead[prompt] = None


@dataclass(slots=True)
class Progress:
    """Where the trainer of a run stands."""

    run: str
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    base: int = 0
    next_step: int | None = None
    """The step after the last one that was acked; None before the first."""
    version: int | None = None
    """Number of the policy version that was set last; None = none was."""
    feed: FeedProgress | None = None

    def begin_feed(self, asked: FeedProgress) -> FeedProgress:
        """A data set is fed from its beginning, or from where the resumed feed of it stood.

        Raises:
            InvalidRequest: the run was fed with another one, or in another order.
        """
        before = self.feed
        if before is None:
            self.feed = asked
            return asked
        before.epochs = max(before.epochs, asked.epochs)  # more of them than before changes nothing in those that were
        for name in ("epochs", "shuffle_seed", "rows"):
            was, now = getattr(before, name), getattr(asked, name)
            if was != now:
                raise InvalidRequest(
                    f"run {self.run!r} was fed with {name}={was!r}, got {now!r}: the prompts that it goes on with would be others; "
                    "feed as before, or begin a run with another id",
                    field=name if name != "rows" else "dataset",
                )
        return before

    def settle(self, groups: Iterable[GroupRecord]) -> None:
        """Groups were let go of: the prompts of those that count are not outstanding any more."""
        if self.feed is not None:
            for record in groups:
                if record.verdict in SETTLES and record.incarnation >= self.base:
                    self.feed.settle(record.prompt)

    def pass_step(self, index: int) -> None:
        """A step was acked: a new point in the history."""
        self.next_step = max(index + 1, self.next_step or 0)
        self.token = secrets.token_hex(8)

    def to_state(self) -> dict[str, object]:
        """Plain values, fit for JSON and for any checkpoint."""
        feed = self.feed
        return {
            "schema_version": SCHEMA,
            "run": self.run,
            "token": self.token,
            "base": self.base,
            "next_step": self.next_step,
            "version": self.version,
            "feed": feed
            and {
                "epochs": feed.epochs,
                "shuffle_seed": feed.shuffle_seed,
                "rows": feed.rows,
                "epoch": feed.epoch,
                "position": feed.position,
                "outstanding": list(feed.outstanding),
                "settled_ahead": list(feed.settled_ahead),
            },
        }

    def to_json(self) -> bytes:
        return orjson.dumps(self.to_state())

    @classmethod
    def from_state(cls, state: object, run: str) -> Progress:
        """Reads a state.

        Raises:
            InvalidRequest: it is none, of another run, or written by a newer version.
        """
        version = state.get("schema_version") if isinstance(state, Mapping) else None
        if isinstance(version, int) and version > SCHEMA:
            raise InvalidRequest(
                f"written by a newer version (schema {version}, this one reads {SCHEMA}): upgrade rollstream", field="resume"
            )
        try:
            found = RunState.parse(state)
        except InvalidRequest as error:
            inside = next((name for name, part in state.items() if _is_state(part)), None) if isinstance(state, Mapping) else None
            hint = f"; it is in this map: pass checkpoint[{inside!r}]" if inside is not None else ""
            raise InvalidRequest(f"expected what run.state_dict() returned: {error}{hint}", field="resume") from None
        if found.run != run:
            raise InvalidRequest(f"expected the state of run {run!r}, got that of run {found.run!r}", field="resume")
        progress = cls(run=run, token=found.token, base=found.base, next_step=found.next_step, version=found.version)
        if found.feed is not None:
            bad = next((prompt for prompt in found.feed.outstanding if not PROMPT_ID.match(prompt)), None)
            if bad is not None:
                raise InvalidRequest(f"expected prompt ids, got {bad!r}", field="resume.feed.outstanding")
            progress.feed = FeedProgress(
                epochs=found.feed.epochs,
                shuffle_seed=found.feed.shuffle_seed,
                rows=found.feed.rows,
                epoch=found.feed.epoch,
                position=found.feed.position,
                outstanding=dict.fromkeys(found.feed.outstanding),
                settled_ahead=dict.fromkeys(found.feed.settled_ahead),
            )
        return progress


def _is_state(value: object) -> bool:
    return isinstance(value, Mapping) and {"schema_version", "token"} <= value.keys()
