"""The check at start: does our renderer write what the server's own chat template writes?

A renderer that differs from the template a model was trained with still works, only worse, and nobody notices. So before a job's first
call to a server, canonical dialogues are rendered by both and the ids compared:
  - first prompts as a whole;
  - appended ones up to the model's turn, and from its end on: how a template writes a sampled turn again does not matter, since we keep
    the ids that it was sampled with. Where thoughts are dropped here, all of it is compared.

A difference refuses the job, unless its settings name the dialogue. That a template drops thoughts which the job keeps is no difference:
the job says so itself (`keep_thinking`), and the record says it, too. A server that cannot render is used, and the record says that.

A verdict is kept by server and renderer for some minutes, or until the server was asked anew what it can do, as its client does after a
broken connection: the program there may be another one. Jobs that come at once wait for one comparison.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from pipeline.engines.errors import Refused
from pipeline.errors import InvalidRequest
from pipeline.messages import ChatMessage
from workers.agent.canonical_dialogues import DIALOGUES, NAMES, THOUGHT, Dialogue
from workers.agent.renderers import Renderer
from workers.llm.backend import Caps, Model
from workers.llm.server_check import ChatTemplate, ShowsServers

log = structlog.get_logger(__name__)

SHOWN = 12
"""Ids of both texts that a difference shows."""
SEARCHED = 4096
"""Ids of a server's rendering among which ours are looked for; canonical dialogues have some hundreds."""
KEPT = 256
GOOD_FOR_S = 300.0
"""A server that is started again while nobody has a connection open is found out then; comparing is eight short requests."""
NO_ROUTE = frozenset({403, 404, 405, 501})
"""Of a server without `/tokenize`."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One dialogue that the two write differently."""

    dialogue: str
    place: int
    """Token of the server's rendering; -1 = it refuses the dialogue."""
    ours: str
    theirs: str

    def __str__(self) -> str:
        if self.place < 0:
            return f"the server's template refuses the dialogue {self.dialogue!r}: {self.theirs}"
        return f"the dialogue {self.dialogue!r} at token {self.place}: ours goes on {self.ours!r}, the server's {self.theirs!r}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the comparison found."""

    differences: tuple[Difference, ...] = ()
    not_compared: str = ""
    """Why nothing could be compared; empty = it was."""
    drops_thoughts: bool = False
    """The server's template drops thoughts of earlier turns that the job keeps."""

    @property
    def in_a_word(self) -> str:
        """As the trajectory records it."""
        if self.not_compared:
            return f"not compared: {self.not_compared}"
        words = [f"differs: {', '.join(difference.dialogue for difference in self.differences)}"] if self.differences else ["same"]
        return "; ".join(words + ["thoughts kept that the server's template drops"] * self.drops_thoughts)


class TemplateMismatch(InvalidRequest):
    """Our renderer and the server's template disagree, and the job's settings do not allow that: no attempt can do better."""

    def __init__(self, server: str, refused: Sequence[Difference]) -> None:
        names = [difference.dialogue for difference in refused]
        super().__init__(
            f"the renderer and the chat template of {server} differ on {refused[0]}"
            + (f"; also on {', '.join(names[1:])}" if names[1:] else "")
            + ". Choose the chat settings of this model (family, tokenizer, thinking, options), "
            f"or name what may differ: template_differences={names}",
            field="chat",
        )
        self.server = server
        self.differences = tuple(refused)


async def compare(renderer: Renderer, server: Model) -> Verdict:
    """Render all canonical dialogues twice.

    Raises:
        ModelError: the server gave no answer.
    """
    if not isinstance(server, ChatTemplate):
        return Verdict(not_compared="this server renders no dialogues")
    differences: list[Difference] = []
    refusals, drops = 0, False
    for dialogue in DIALOGUES:
        try:
            theirs = await server.render_chat(
                dialogue.as_server_takes_it(), [dict(tool) for tool in dialogue.tools], **dict(renderer.template_kwargs)
            )
        except Refused as error:
            if error.status in NO_ROUTE:
                return Verdict(not_compared=f"this server renders no dialogues (HTTP {error.status})")
            refusals += 1
            differences.append(Difference(dialogue.name, -1, "", error.detail))
            if refusals == len(DIALOGUES):
                return Verdict(not_compared=f"the server renders no dialogue: {error.detail}")
            continue
        found = _compare(renderer, dialogue, theirs)
        if found is not None:
            differences.append(found)
        speaks_again = any(message.role == "user" for message in dialogue.replies)
        if dialogue.thought and speaks_again and renderer.keeps_thinking:
            drops = THOUGHT not in renderer.tokenizer.decode(theirs)
    return Verdict(tuple(differences), drops_thoughts=drops)


def _compare(renderer: Renderer, dialogue: Dialogue, theirs: list[int]) -> Difference | None:
    try:
        first = renderer.first_prompt(dialogue.first, dialogue.tools).ids
        if not dialogue.replies:
            return _difference(renderer, dialogue, 0, first, theirs)
        end = renderer.stop_token_ids[0]
        turn = [*renderer.tokenizer.encode_template(dialogue.thought), *renderer.tokenizer.encode(dialogue.spoken), end]
        spoken = [*first, *turn]
        prompt = renderer.next_prompt(spoken, [(len(first), len(spoken))], dialogue.replies)
    except (ValueError, InvalidRequest) as error:
        return Difference(dialogue.name, 0, f"(refused: {error})", renderer.tokenizer.decode(theirs[:SHOWN]))
    if prompt.began:
        return _difference(renderer, dialogue, 0, prompt.ids, theirs)
    before = first[: len(first) - _generation_length(renderer)]
    if theirs[: len(before)] != before:
        return _difference(renderer, dialogue, 0, before, theirs)
    added = prompt.ids[len(spoken) :]
    if theirs[-len(added) :] == added and len(theirs) >= len(before) + len(added):
        return None
    return _difference(renderer, dialogue, _best_place(added, theirs, len(before)), added, theirs)


def _difference(renderer: Renderer, dialogue: Dialogue, start: int, ours: list[int], theirs: list[int]) -> Difference | None:
    rest = theirs[start:]
    if ours == rest:
        return None
    place = _common(ours, rest)
    texts = [renderer.tokenizer.decode(ids[place : place + SHOWN]) for ids in (ours, rest)]
    if max(theirs, default=0) >= renderer.tokenizer.vocab_size:
        texts[1] = (
            f"(id {max(theirs):,}, which the tokenizer of {renderer.tokenizer.vocab_size:,} ids does not have: it is another model's)"
        )
    return Difference(dialogue.name, start + place, *texts)


def _generation_length(renderer: Renderer) -> int:
    """How many ids at the end of a prompt follow from no message: two prompts end in them alike."""
    one, other = (renderer.first_prompt([ChatMessage(role="user", content=text)], ()).ids[::-1] for text in ("a", "?"))
    return _common(one, other)


def _best_place(added: list[int], theirs: list[int], after: int) -> int:
    """Where in the server's rendering the appended ids come closest to standing."""
    places = range(after, min(len(theirs), after + SEARCHED))
    return max(places, key=lambda place: _common(added, theirs[place : place + len(added)]), default=after)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@dataclass(slots=True)
class _Entry:
    comparing: asyncio.Lock = field(default_factory=asyncio.Lock)
    caps: Caps | None = None
    verdict: Verdict = Verdict()
    until_s: float = 0.0

    def stands(self, caps: Caps, now_s: float) -> bool:
        return self.caps is caps and now_s < self.until_s


class TemplateChecks:
    """The verdicts of one process."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._entries: OrderedDict[tuple[str, str, str], _Entry] = OrderedDict()
        self.compared = 0
        """Comparisons made."""

    async def require(self, server: str, model: Model, renderer: Renderer, allowed: Sequence[str] = ()) -> Verdict:
        """The verdict on a server, compared when nobody has.

        Args:
            server: its address.
            allowed: dialogues that may differ.

        Raises:
            TemplateMismatch: others differ.
            InvalidRequest: there is no dialogue of a name in `allowed`.
            ModelError: the server gave no answer.
        """
        check_names(allowed)
        caps = await model.probe()
        key = (server, renderer.fingerprint, renderer.tokenizer.fingerprint)
        entry = self._entries.setdefault(key, _Entry())
        self._entries.move_to_end(key)
        while len(self._entries) > KEPT:
            self._entries.popitem(last=False)
        if not entry.stands(caps, self._monotonic()):
            async with entry.comparing:
                if not entry.stands(caps, self._monotonic()):
                    before = entry.verdict if entry.caps is not None else None
                    entry.verdict = await compare(renderer, model)
                    entry.caps, entry.until_s = caps, self._monotonic() + GOOD_FOR_S
                    self.compared += 1
                    if entry.verdict != before:
                        _tell(server, renderer, entry.verdict)
        refused = [difference for difference in entry.verdict.differences if difference.dialogue not in allowed]
        if refused:
            raise TemplateMismatch(server, refused)
        return entry.verdict


class ServersSeen:
    """One job's look at each server that it calls, a `ServerCheck`, with what it found for the record.

    Args:
        checks: those of the process.
        allowed: dialogues that may differ.
    """

    def __init__(self, checks: TemplateChecks, renderer: Renderer, allowed: Sequence[str]) -> None:
        self._checks = checks
        self._renderer = renderer
        self._allowed = tuple(allowed)
        self._found: dict[str, str] = {}

    async def __call__(self, server: str, model: Model) -> None:
        """As `TemplateChecks.require`."""
        self._found[server] = (await self._checks.require(server, model, self._renderer, self._allowed)).in_a_word

    async def watch(self, model: Model) -> None:
        """Has a pool show its servers, or looks at the one that there is."""
        if isinstance(model, ShowsServers):
            model.check_servers(self)
        else:
            await self(str(getattr(model, "url", "in process")), model)

    def record(self) -> dict[str, object]:
        """For the trajectory: the verdicts by server, and the differences that the job allows."""
        allowed: dict[str, object] = {"template_differences": list(self._allowed)} if self._allowed else {}
        return {"chat_templates": dict(self._found), **allowed}


def check_names(allowed: Sequence[str]) -> None:
    """Refuses names of dialogues that there are not.

    Raises:
        InvalidRequest
    """
    unknown = [name for name in allowed if name not in NAMES]
    if unknown:
        raise InvalidRequest(f"there is no dialogue {unknown[0]!r}; there are {', '.join(NAMES)}", field="chat.template_differences")


def _tell(server: str, renderer: Renderer, verdict: Verdict) -> None:
    tell = log.warning if verdict.not_compared or verdict.differences else log.info
    details = "; ".join(map(str, verdict.differences))
    tell("template_compared", server=server, renderer=renderer.fingerprint, verdict=verdict.in_a_word, differences=details)
