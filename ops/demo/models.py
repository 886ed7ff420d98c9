"""The models a demo can run on: the scripted one of this package, which knows every task, and a real small language model in a real vLLM.

Each says what a person is told of it, which processes serve it, and what the step asks of it. SmolLM2-135M gets the short problems and no
tool, and every group counts: it solves next to none of them, and a step that waited for groups with right and wrong answers would not end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import orjson

from ops.child_processes import ChildProcesses
from ops.demo.places import Places
from ops.demo.tasks import DemoTask
from ops.tasks.scripts import scripted_problems, write_problems
from pipeline.errors import InvalidRequest
from pipeline.folders import make_private_folder
from pipeline.messages import JobTemplate
from trainer_client import ChatRequest, LimitsRequest, SamplingRequest, StepRequest
from workers.handlers.math.handler import SAMPLES
from workers.handlers.math.layouts import LAYOUTS
from workers.handlers.task_data import load_rows

ModelName = Literal["scripted", "smollm2"]
MODEL_NAMES: tuple[ModelName, ...] = get_args(ModelName)
SCRIPTED_PACE = ("--first-token-ms", "40", "--per-token-ms", "4", "--mean-steps", "3")
"""Fast enough for a minute, slow enough to watch."""
SMOLLM2_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
"""What its template writes for a dialogue without a system message."""
SHORT_QUESTION = 120
"""Characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoModel:
    """One of them."""

    name: ModelName
    task: str
    asks: str
    """What the step asks for, with places for `groups` and `n`."""
    said: str
    """What a person should know before it runs, in Rich's markup."""
    takes: str
    """How long a step takes."""
    groups: int
    """Default of `--groups`."""
    n: int
    """Default of `--n`."""
    slots: int
    """Default of `--slots`."""
    start: Callable[[ChildProcesses, Places], None]
    """Starts what serves it."""
    address: Callable[[Places], str]
    """Where it serves; empty as long as it does not."""
    rows: Callable[[], list[Mapping[str, object]]]
    """The problems."""
    request: Callable[[Places, int, int], StepRequest]
    """The step, of so many groups and members."""


def demo_model(name: ModelName, task: DemoTask) -> DemoModel:
    """The model of a name, on a task.

    Raises:
        InvalidRequest: that model knows only `math`.
    """
    if name == "scripted":
        return _scripted(task)
    if task.name != _SMOLLM2.task:
        raise InvalidRequest(f"smollm2 is shown on {_SMOLLM2.task} alone, got {task.name}", field="task")
    return _SMOLLM2


def smollm2_folder(places: Places) -> Path:
    """Where SmolLM2 is kept between demos."""
    return places.models / "SmolLM2-135M-Instruct"


# ---- the scripted model


def _scripted_address(places: Places) -> str:
    """The model's socket is there when it listens."""
    return f"unix:{places.model_socket}" if places.model_socket.exists() else ""


def _scripted(task: DemoTask) -> DemoModel:
    def start(children: ChildProcesses, places: Places) -> None:
        make_private_folder(places.scratch)
        problems = places.scratch / "problems.jsonl"  # with the answers: it goes with the demo
        write_problems(problems, scripted_problems(task.handler(), JobTemplate(task=task.name, options=task.options), task.rows()))
        words = ("--socket", str(places.model_socket), *SCRIPTED_PACE, *task.pace, "--problems", str(problems))
        children.start("model", "workers.llm.scripted", *words)

    def request(_: Places, groups: int, n: int) -> StepRequest:
        return StepRequest(
            task=task.name,
            groups=groups,
            n=n,
            ahead=0,
            run_seed=11,
            options=dict(task.options),
            sampling=SamplingRequest(max_tokens=task.max_tokens),
            limits=LimitsRequest(max_turns=task.max_turns, max_sampled_tokens=task.max_sampled_tokens, tool_timeout_s=15.0),
            version="1.0",
        )

    return DemoModel(
        name="scripted",
        task=task.name,
        asks=task.asks,
        said="Nothing is downloaded now; no GPU and no sudo is used; everything listens on Unix sockets of yours. "
        "[bold]The model is a scripted stand-in: its rewards say nothing of a model.[/bold] "
        "The pipeline, sandboxes, grader and tokens are real. Sandboxes of a demo have no walls, as what its model writes is known; "
        "`rollstream task list` says what this node has for models of yours.",
        takes=task.takes,
        groups=task.groups,
        n=task.n,
        slots=task.slots,
        start=start,
        address=_scripted_address,
        rows=lambda: list(task.rows()),
        request=request,
    )


# ---- SmolLM2 in vLLM


def _start_smollm2(children: ChildProcesses, places: Places) -> None:
    from ops.llm_server.installation import find_vllm
    from ops.llm_server.settings import VllmSettings
    from pipeline.usable_cores import usable_cores

    on_cpu: tuple[str, ...] = ()
    if find_vllm(VllmSettings.load().python).device == "cpu":
        # a core is left to the rest: threads that wait for each other crawl where one of them has to share its core
        on_cpu = ("--cpu", "--cpu-kv-cache-mib", "512", "--cpu-threads", str(max(1, usable_cores() - 1)))
    serve = ["llm", "serve", "--model", str(smollm2_folder(places)), *on_cpu, "--max-model-len", "2048", "--grace-s", "2"]
    children.start("model", "ops.cli", *serve, "--state-file", str(places.model_state))


def _vllm_address(places: Places) -> str:
    try:
        return str(orjson.loads(places.model_state.read_bytes())["url"])
    except (FileNotFoundError, orjson.JSONDecodeError, KeyError):
        return ""


def _smollm2_request(places: Places, groups: int, n: int) -> StepRequest:
    return StepRequest(
        task="math",
        groups=groups,
        n=n,
        over=1.0,
        ahead=0,
        run_seed=11,
        policy="every",
        options={"tools": False},
        sampling=SamplingRequest(max_tokens=64, temperature=0.7),
        limits=LimitsRequest(max_turns=1, max_sampled_tokens=64),
        chat=ChatRequest(
            tokenizer=str(smollm2_folder(places)),
            options={"default_system": SMOLLM2_SYSTEM},
            # its template knows no tools and writes them nowhere
            template_differences=("tools", "system and tools", "two tool answers", "two tool answers after a thought"),
        ),
    )


_SMOLLM2 = DemoModel(
    name="smollm2",
    task="math",
    asks="{groups} groups of {n} rollouts on short math problems",
    said="The model is [bold]SmolLM2-135M-Instruct in a real vLLM[/bold]: tokens, logprobs and rewards are its own. It is very small: "
    "expect few right answers, or none. vLLM listens on 127.0.0.1, everything else on Unix sockets of yours.",
    takes="one to three minutes on two free cores, the start of vLLM included",
    groups=2,
    n=4,
    slots=16,
    start=_start_smollm2,
    address=_vllm_address,
    rows=lambda: _problems(longest=SHORT_QUESTION),
    request=_smollm2_request,
)


def _problems(*, longest: int | None) -> list[Mapping[str, object]]:
    found = [row for sample in SAMPLES for row in load_rows(sample, LAYOUTS).rows]
    return [row for row in found if longest is None or len(str(row["question"])) <= longest]
