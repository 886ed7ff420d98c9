"""Environments of verifiers written for these tests; a row names this module, as it would name an installed one."""

from __future__ import annotations

from typing import Any

import verifiers as vf
from datasets import Dataset

WORDS = ("stream", "lease", "worker")


def load_environment(kind: str = "single") -> Any:
    """One of a single turn, of several, or of a kind that is refused."""
    rows = Dataset.from_list([{"question": word, "answer": word[::-1]} for word in WORDS])
    rubric = vf.Rubric(funcs=[_right, _short], weights=[1.0, 0.5])
    match kind:
        case "single":
            return vf.SingleTurnEnv(dataset=rows, system_prompt="Reverse the word.", rubric=rubric)
        case "hints":
            return Hints(dataset=rows, rubric=rubric, max_turns=4)
        case "tools":
            return vf.ToolEnv(dataset=rows, rubric=rubric, tools=[_look_up])
        case _:
            return vf.SingleTurnEnv(
                dataset=rows, rubric=rubric, few_shot=[{"role": "user", "content": "ab"}, {"role": "assistant", "content": "ba"}]
            )


class Hints(vf.MultiTurnEnv):  # type: ignore[misc]  # the package is not installed where types are checked
    """Tells one more letter each turn, and ends when the word is said."""

    async def env_response(self, messages: Any, state: Any, **more: Any) -> Any:
        if str(messages[-1].content) == state["answer"]:
            state["final_env_response"] = [vf.UserMessage(content="Right.")]
            return state["final_env_response"]
        return [vf.UserMessage(content=f"It begins with {state['answer'][: len(state['trajectory'])]}.")]


async def _right(completion: Any, answer: str) -> float:
    said = [message.content for message in completion if message.role == "assistant"]
    return float(said[-1] == answer)


async def _short(completion: Any) -> float:
    return float(len(completion) < 3)


def _look_up(word: str) -> str:
    """Looks a word up."""
    return word
