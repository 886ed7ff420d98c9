"""The rows that the task `gym` reads.

package       `gem`, `gymnasium`, `verifiers` or `rollstream`
environment   as the package registers it: `game:GuessTheNumber-v0`, `FrozenLake-v1`, `lamps`
seed          of `reset`; without one 0; of verifiers the row of its data set. All members of a group play the same
options       keyword arguments that it is made with
intro         a text before the first observation
action        what of the model's message is the action: `message` all of it, `boxed` what stands in its last \\boxed{}, `tag` what
              stands between its last <action> and </action>. Without it `tag` for gymnasium, else `message`
solution      actions that bring the full reward, for preflight
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from workers.graders.gym import GymWorld
from workers.graders.gym.world import PACKAGES
from workers.handlers.task_data import BadTaskData, Layout, Row, only_known, text_of

ActionIn = Literal["message", "boxed", "tag"]
ACTION_IN: tuple[ActionIn, ...] = get_args(ActionIn)
MAX_ACTIONS = 10_000
_FIELDS = frozenset(("id", "package", "environment", "seed", "options", "intro", "action", "solution", "meta"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GymProblem:
    """An episode to play."""

    world: GymWorld
    intro: str
    action_in: ActionIn
    solution: Sequence[str] | None


def _ours(row: Row, place: str) -> GymProblem:
    only_known(row, _FIELDS, place)
    package, action = row.get("package"), row.get("action")
    if package not in PACKAGES:
        raise BadTaskData(f"{place}: expected {', '.join(PACKAGES)}, found {package!r:.80}", field="package")
    if action is None:
        action = "tag" if package == "gymnasium" else "message"
    if action not in ACTION_IN:
        raise BadTaskData(f"{place}: expected {', '.join(ACTION_IN)}, found {action!r:.80}", field="action")
    seed, options = row.get("seed", 0), row.get("options") or {}
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise BadTaskData(f"{place}: expected a whole number from 0, below 2**32, found {seed!r:.80}", field="seed")
    if not isinstance(options, dict):
        raise BadTaskData(f"{place}: expected an object, found {options!r:.80}", field="options")
    solution = row.get("solution")
    if solution is not None and not _are_texts(solution):
        raise BadTaskData(f"{place}: expected a list of texts, found {solution!r:.80}", field="solution")
    environment = text_of(row, "environment", place, longest=200)
    return GymProblem(
        world=GymWorld(package=package, environment=environment, options=options, seed=seed),
        intro=text_of(row, "intro", place) if row.get("intro") else "",
        action_in=action,
        solution=None if solution is None else tuple(cast("list[str]", solution)),
    )


def _are_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and 0 < len(value) <= MAX_ACTIONS and all(isinstance(item, str) for item in value)


LAYOUTS: Sequence[Layout[GymProblem]] = (Layout(name="rollstream", columns=frozenset(("package", "environment")), read=_ours),)
