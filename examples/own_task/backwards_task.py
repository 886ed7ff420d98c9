"""The task `backwards`: spell a word backwards. A whole task handler, small enough to copy.

`prompt.data` has `word`. INIT makes a sandbox and writes the word into a file there, RUN is the agent loop with the tool `python`, EVAL
compares texts. The reward is 1 for the right spelling, or, with the option `fraction`, the share of letters in their place; that is the
component `letters`, too, for trainers that filter on it (`informative_on="letters"`).
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.errors import InvalidRequest
from pipeline.messages import ChatMessage, Grade, JobSpec, Trajectory
from workers.handlers import EvalContext, StageContext
from workers.handlers.agent_handler import AgentHandler
from workers.handlers.submission import submitted
from workers.handlers.task_options import Option, Truth
from workers.sandbox.base import Sandbox
from workers.sandbox.spec import Isolation, SandboxSpec

SYSTEM = "You spell words backwards. You may use the tool `python`; the word is in word.txt too. End with the answer in \\boxed{}."

FRACTION = Option(name="fraction", takes=Truth(), default=False, about="the reward is the share of letters in their place")


class BackwardsHandler(AgentHandler):
    """One object serves many jobs at once, so it keeps nothing of a job."""

    name = "backwards"
    about = "A word to be spelt backwards."
    tool_names = ("python",)
    options = (FRACTION,)  # all that requests may say in `options`: a misspelt one is refused

    def sandbox_spec(self, spec: JobSpec) -> SandboxSpec:
        # the job says in `capability` what must stand between the sandbox and its node; a node that cannot give that never gets the job
        return SandboxSpec(isolation=Isolation(spec.template.capability))

    async def prepare(self, context: StageContext, sandbox: Sandbox) -> None:
        await sandbox.write_file("word.txt", word_of(context.spec).encode())

    def messages(self, spec: JobSpec) -> Sequence[ChatMessage]:
        question = f"Spell the word {word_of(spec)!r} backwards."
        return (ChatMessage(role="system", content=SYSTEM), ChatMessage(role="user", content=question))

    def gold(self, spec: JobSpec) -> Trajectory:
        return submitted(f"\\boxed{{{word_of(spec)[::-1]}}}")  # what must score 1: `rollstream task preflight` asks for it

    async def evaluate(self, context: EvalContext) -> Grade:
        wanted, found = word_of(context.spec)[::-1], boxed(context.trajectory.answer)
        share = sum(a == b for a, b in zip(wanted, found, strict=False)) / max(len(wanted), len(found))
        return Grade(
            reward=share if FRACTION.of(context.spec) else float(found == wanted),
            components={"letters": share},
            details={"extracted": found},
            grader="backwards/1",
        )


def word_of(spec: JobSpec) -> str:
    """The word of a job. What can never succeed is an `InvalidRequest`: the job ends at once as a dead letter that says why."""
    word = spec.prompt.data.get("word")
    if not isinstance(word, str) or not word.isalpha():
        raise InvalidRequest(f"expected a word of letters, got {word!r}", field="prompt.word")
    return word


def boxed(answer: str) -> str:
    """What stands in the last box of an answer; empty without one."""
    _, found, rest = answer.rpartition("\\boxed{")
    return rest.partition("}")[0].strip() if found else ""
