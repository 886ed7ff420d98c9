"""What the scripted model says.

It plays a model on math problems and stands in for one wherever the pipeline is shown or tested. **Its rewards say nothing of any
model**: it looks right answers up in a problem bank and gets some wrong on purpose.

  * A problem is of one kind for good, by a hash of its question and the policy's seed: every member solves it, none does, or each
    does with a probability of its own. So groups are filtered or informative in known shares.
  * What one member says depends on the seed of its request alone: members differ, a repeated request does not.
  * It calls the tool `python` where that is on offer, now and then with broken JSON or with code that raises; it reads the result in
    the next prompt, corrects a failed call, and answers with the value that was printed. Some answers have no box, some never end.
  * Where a problem has scripts (`acts.py`) a member plays one of them to its end: the right one, or one that fails.
  * It remembers nothing between calls: a turn is a function of the prompt and the seed.
  * Some words are spelt in other tokens than the tokenizer's own choice, as models do: who encodes its text again gets other ids.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from workers.llm import chatml
from workers.llm.scripted import speech
from workers.llm.scripted.acts import Act, place_in, playable
from workers.llm.scripted.conversation import Conversation, read_conversation
from workers.llm.scripted.problems import Problem, ProblemBank
from workers.llm.tokenizer import Tokenizer

PYTHON_TOOL = "python"
MOST_PIECES_HELD = 32
"""Pieces that are spelt at a time, so that merges cross their borders as in a text of one piece."""
MAX_CALLS = 3
"""Tool calls after which it answers, whatever came of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions:
    """Shares and sizes; rates are probabilities in [0, 1]."""

    seed: int = 0
    all_right: float = 0.3
    """Share of problems that every member solves."""
    all_wrong: float = 0.2
    """Share that none solves; the rest is mixed."""
    tool_rate: float = 0.5
    bad_json_rate: float = 0.12
    """Of tool calls."""
    bad_code_rate: float = 0.18
    """Of tool calls."""
    long_rate: float = 0.2
    """Of wrong answers: those that run on until they are cut."""
    no_box_rate: float = 0.25
    """Of wrong answers: those without a box."""
    drift_rate: float = 0.05
    """Of sentences: those with a word in other tokens than the tokenizer's."""
    mean_steps: float = 5.0
    """Sentences of thought before a call or an answer; the spread is lognormal, and each problem has its own factor."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """How one problem stands with this policy."""

    answer: str
    chance: float
    """Probability that a member gets it right."""
    length_factor: float
    problem: Problem | None = None
    """None = it is not in the bank."""


class Policy:
    """The scripted model. Deterministic: `utter` is a function of its arguments.

    Args:
        tokenizer: of the server.
        bank: where right answers come from. A question that is not in it is answered wrongly.
    """

    def __init__(self, tokenizer: Tokenizer, bank: ProblemBank, options: PolicyOptions) -> None:
        self._tokenizer = tokenizer
        self._bank = bank
        self._options = options
        self.end_id = tokenizer.special(chatml.CLOSE)

    def utter(self, prompt_ids: Sequence[int], seed: int, max_tokens: int) -> list[int]:
        """The turn that is due: at most `max_tokens` ids, the end token included when it comes to an end."""
        conversation = read_conversation(self._tokenizer.decode(prompt_ids))
        outlook = self.outlook(conversation.question)
        rng = random.Random(f"{self._options.seed}/{seed}/{conversation.answers}/{conversation.question}")
        ids: list[int] = []
        held: list[str] = []
        for piece in self._pieces(conversation, outlook, rng):
            if piece not in self._tokenizer.specials:
                held.append(piece)
                if len(held) < MOST_PIECES_HELD:
                    continue
            ids += self._spell(held, rng)
            held.clear()
            if piece in self._tokenizer.specials:
                ids.append(self._tokenizer.special(piece))
            if len(ids) >= max_tokens:
                break
        return ids[:max_tokens]

    def outlook(self, question: str) -> Outlook:
        """What the policy makes of a question; the same for every member."""
        problem = self._bank.find(question)
        key = (problem.question if problem else question).strip()
        rng = random.Random(hashlib.sha256(f"{self._options.seed}/{key}".encode("utf-8", "replace")).digest())
        kind, chance, factor = rng.random(), rng.uniform(0.2, 0.8), rng.lognormvariate(0.0, 0.6)
        if problem is None:
            return Outlook(answer=str(rng.randrange(100)), chance=0.0, length_factor=factor)
        if kind < self._options.all_right:
            chance = 1.0
        elif kind < self._options.all_right + self._options.all_wrong:
            chance = 0.0
        return Outlook(answer=problem.answer, chance=chance, length_factor=factor, problem=problem)

    def _pieces(self, conversation: Conversation, outlook: Outlook, rng: random.Random) -> Iterator[str]:
        """The turn, piece by piece; markup and end are pieces of their own."""
        if _unclosed(conversation.opened, chatml.CALL_OPEN, chatml.CALL_CLOSE):
            # Interrupted inside a call: it is closed as it stands and, if broken, told to be.
            yield from (chatml.CALL_CLOSE, chatml.CLOSE)
            return
        options = self._options
        numbers = speech.numbers_in(conversation.question)
        n_steps = max(1, round(rng.lognormvariate(0.0, 0.5) * options.mean_steps * outlook.length_factor))
        right = rng.random() < outlook.chance
        if act := _due(outlook.problem, conversation, rng, right=right):
            yield from self._play(act, conversation, rng, numbers, n_steps)
            return
        value = outlook.answer if right else speech.altered(outlook.answer, rng)
        wants_tool = PYTHON_TOOL in conversation.tools and conversation.answers < MAX_CALLS
        if conversation.tool_result is not None:
            wants_tool = wants_tool and conversation.tool_failed and rng.random() < 0.85
            n_steps = min(n_steps, 2)
        else:
            wants_tool = wants_tool and rng.random() < options.tool_rate

        runs_on = not wants_tool and not right and rng.random() < options.long_rate
        if not conversation.opened or _unclosed(conversation.opened, chatml.THINK_OPEN, chatml.THINK_CLOSE):
            if not conversation.opened:
                yield from (chatml.THINK_OPEN, "\n")
            yield from speech.endless(rng, numbers) if runs_on else speech.thought(rng, numbers, n_steps)
            yield from ("\n", chatml.THINK_CLOSE, "\n\n")
        if wants_tool:
            yield from self._call(conversation, value, rng)
        elif runs_on:
            yield from speech.endless(rng, numbers)
        else:
            yield self._answer(conversation, value, right, rng)
        yield chatml.CLOSE

    def _play(self, act: Act, conversation: Conversation, rng: random.Random, numbers: list[str], n_steps: int) -> Iterator[str]:
        """A turn of a script, behind a thought; what an interrupted turn has said of it already is not said again."""
        opened = conversation.opened
        if not opened or _unclosed(opened, chatml.THINK_OPEN, chatml.THINK_CLOSE):
            if not opened:
                yield from (chatml.THINK_OPEN, "\n")
            yield from speech.thought(rng, numbers, min(n_steps, 2) if conversation.said else n_steps)
            yield from ("\n", chatml.THINK_CLOSE, "\n\n")
        begun = opened.rpartition(chatml.THINK_CLOSE)[2].lstrip("\n")
        if rest := act.say.removeprefix(begun) if begun else act.say:
            yield from _in_pieces(rest)
        for number, call in enumerate(act.calls):
            if number or act.say:
                yield "\n"
            is_broken = rng.random() < self._options.bad_json_rate
            yield from (chatml.CALL_OPEN, "\n", *_in_pieces(call.body[:-1] if is_broken else call.body), "\n", chatml.CALL_CLOSE)
        yield chatml.CLOSE

    def _call(self, conversation: Conversation, value: str, rng: random.Random) -> Iterator[str]:
        argument = conversation.tools[PYTHON_TOOL]
        fate = rng.random()
        if fate < self._options.bad_json_rate:
            body = speech.broken_call(rng, PYTHON_TOOL, argument, speech.code_for(rng, value))
        elif fate < self._options.bad_json_rate + self._options.bad_code_rate:
            body = speech.call(PYTHON_TOOL, argument, speech.code_that_raises(rng))
        else:
            body = speech.call(PYTHON_TOOL, argument, speech.code_for(rng, value))
        yield from (chatml.CALL_OPEN, "\n", body, "\n", chatml.CALL_CLOSE)

    def _answer(self, conversation: Conversation, value: str, right: bool, rng: random.Random) -> str:
        if conversation.tool_result is not None and not conversation.tool_failed:
            printed = speech.plausible_value(conversation.tool_result)
            if printed is not None:
                return f"The tool printed {printed}. " + speech.answer(rng, printed)
        if not right and rng.random() < self._options.no_box_rate:
            return speech.answer_without_box(rng, value)
        return speech.answer(rng, value)

    def _spell(self, pieces: Sequence[str], rng: random.Random) -> list[int]:
        """Ids of some pieces of text, now and then cut where the tokenizer would not."""
        ids: list[int] = []
        start = ""
        for piece in pieces:
            if len(piece) > 8 and rng.random() < self._options.drift_rate:
                cut = rng.randrange(1, len(piece))
                ids += self._tokenizer.encode(start + piece[:cut])
                start = piece[cut:]
            else:
                start += piece
        return ids + self._tokenizer.encode(start)


def _due(problem: Problem | None, conversation: Conversation, rng: random.Random, *, right: bool) -> Act | None:
    """The act that comes next in the script which this member plays; None where the problem has none.

    Of the scripts that the dialogue has followed farthest, the right one if it is to be `right`. One that is followed alone is played on,
    whatever this turn's dice say.
    """
    if problem is None or not problem.right:
        return None
    scripts = [playable(script, conversation.tools) for script in (problem.right, *problem.wrong)]
    places = [place_in(script, conversation.said) for script in scripts]
    open_ = [number for number, script in enumerate(scripts) if script and places[number] == max(places)]
    if not open_:
        return None
    wrong = [number for number in open_ if number > 0]
    chosen = 0 if 0 in open_ and (right or not wrong) else rng.choice(wrong)
    script = scripts[chosen]
    return script[min(places[chosen], len(script) - 1)]


def _in_pieces(text: str) -> Iterator[str]:
    """A long text in lines, so that what is said can be cut at the budget of a call without spelling all of it."""
    yield from text.splitlines(keepends=True)


def _unclosed(text: str, opening: str, closing: str) -> bool:
    return text.rfind(opening) > text.rfind(closing)
