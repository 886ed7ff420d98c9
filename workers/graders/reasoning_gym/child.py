"""What a scoring process does: make a puzzle, and score an answer, by the package `reasoning-gym`.

Run by the pool as `python -m workers.graders.reasoning_gym.child`, or with `--once` for one request on standard input. Only here is the
package imported. Puzzles hang on the order of sets: the process is started with PYTHONHASHSEED=0, so that all of them make the same.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from functools import lru_cache
from typing import Any

from workers.graders.killable_child import serve
from workers.graders.reasoning_gym.corrections import scored
from workers.graders.reasoning_gym.guard import forbid_effects, guard_eval, guard_sympy
from workers.graders.reasoning_gym.left_out import leave_out
from workers.graders.reasoning_gym.puzzle import digest_of, reference_of

_NOT_SCORED = leave_out()
guard_sympy()

import reasoning_gym  # noqa: E402
from reasoning_gym.composite import DatasetSpec  # noqa: E402
from reasoning_gym.factory import DATASETS  # noqa: E402

guard_eval("reasoning_gym")

_HARMLESS = "-"
"""An answer that breaks no scorer; for puzzles without a reference."""
_WHY_CHARS = 300
_KEPT_DATASETS = 16
_calmed = False


class _Bad(Exception):
    pass


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The reply to one request; `do` is `make`, `score` or `reference`."""
    global _calmed
    if not _calmed:
        forbid_effects()
        _calmed = True
    try:
        dataset, entry = _puzzle(request)
    except _Bad as bad:
        return {"bad": str(bad)}
    digest = digest_of(entry)
    if request["do"] == "make":
        return {"question": str(entry["question"]), "reference": reference_of(entry), "digest": digest}
    given, reference = request.get("answer"), reference_of(entry)
    if request["do"] == "reference":
        given = _HARMLESS if reference is None else reference
    name = str(entry["metadata"].get("source_dataset", request["dataset"]))
    score = scored(name, dataset.score_answer, str(given), entry)
    return {"score": float(score), "digest": digest, "reference": reference is not None}


def _puzzle(request: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The data set and its entry."""
    given = request["entry"]
    config = dict(request["config"])
    try:
        if given is not None:
            return _dataset(request["dataset"], json.dumps({**config, "seed": 0}, sort_keys=True)), dict(given)
        config = {"size": request["index"] + 1, **config, "seed": request["seed"]}
        dataset = _dataset(request["dataset"], json.dumps(config, sort_keys=True))
        return dataset, dict(dataset[request["index"]])
    except MemoryError:
        raise
    except _Bad:
        raise
    except Exception as broken:  # whatever a data set says of its settings
        raise _Bad(f"{type(broken).__name__}: {broken}"[:_WHY_CHARS]) from broken


@lru_cache(_KEPT_DATASETS)
def _dataset(name: str, config_json: str) -> Any:
    if name not in DATASETS:
        raise _Bad(f"reasoning-gym {reasoning_gym.__version__} has no data set {name!r}")
    if name in _NOT_SCORED:
        raise _Bad(f"{name} is scored with a package that is not installed: pip install reasoning-gym, with all that it asks for")
    config = json.loads(config_json)
    if name == "composite":
        config["datasets"] = [DatasetSpec(**each) for each in config.get("datasets", ())]
    return reasoning_gym.create_dataset(name, **config)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    if "--once" in sys.argv:
        sys.stdout.write(json.dumps(answer(json.load(sys.stdin))))
    else:
        serve(answer)
