"""What a request of the original means here: task, row, sampling, limits, and what has no effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.gateway.original_request import Asked, OriginalRequests, read_defaults, row_of
from ops.gateway.refusals import Refusal
from ops.gateway.settings import GatewaySettings
from ops.gateway.tools import TaskTools
from ops.gateway.work import queue_name
from pipeline.errors import InvalidRequest
from pipeline.keys import PROMPT_ID

ROW = {"instance_id": "repo__issue__hash", "trajectory_id": "t0", "question": "1 + 1?", "answer": "2"}


def read(sampling_params: dict[str, object] | None = None, *, settings: GatewaySettings | None = None, **more: object) -> Asked:
    originals = OriginalRequests(settings or GatewaySettings(), TaskTools(("chess",)).names)
    body = {"instance": {"data_source": "deepscaler", **ROW}, "sampling_params": sampling_params or {}, **more}
    return originals.read(body)


@pytest.mark.parametrize(
    ("source", "task"),
    [
        ("swebench", "swe"),
        ("deepscaler", "math"),
        ("deepcoder", "code"),
        ("deepcoder_primeintellect", "code"),
        ("apps", "code"),
        ("taco", "code"),
        ("codeforces", "code"),
        ("codecontests", "code"),
        ("stem", "stem"),
        ("reasoning_gym", "reasoning_gym"),
        ("math", "math"),
        ("chess", "chess"),
        ("mine", "chess"),
    ],
)
def test_each_data_source_has_its_task(source: str, task: str) -> None:
    settings = GatewaySettings(sources=("mine=chess",))

    assert read(settings=settings, instance={"data_source": source, **ROW}).request.task == task


@pytest.mark.parametrize("source", [None, "", 7, "osworld", "deep"])
def test_what_nobody_has_is_a_400(source: object) -> None:
    with pytest.raises(Refusal) as refused:
        read(instance={"data_source": source, **ROW})

    assert (refused.value.status, refused.value.field) == (400, "instance.data_source")


def test_the_example_of_its_readme_is_taken() -> None:
    asked = read({"temperature": 0.3, "top_p": 0.95}, instance={"data_source": "swebench", **ROW, "patch": "", "metadata": {}})

    assert (asked.request.task, asked.request.sampling.temperature, asked.request.sampling.top_p) == ("swe", 0.3, 0.95)
    assert (asked.instance_id, asked.trajectory_id) == ("repo__issue__hash", "t0")
    assert not asked.request.exact_logprobs
    assert "top_p cut the distribution" in asked.warnings[0]
    assert asked.request.prompt["instance_id"] == "repo__issue__hash"


def test_parameters_go_where_they_have_their_effect() -> None:
    asked = read(
        {
            "temperature": 1,
            "top_k": -1,
            "max_output_tokens": 4096,
            "max_iterations": 35,
            "max_model_len": 512,
            "enable_thinking": False,
            "custom_tokenizer": "/models/q",
            "seed": 7,
            "stop": None,
            "token_level_generation": True,
        }
    )
    request = asked.request

    assert (request.sampling.temperature, request.sampling.top_k, request.sampling.max_tokens) == (1.0, 0, 4096)
    assert (request.limits.max_turns, request.limits.max_context_tokens, request.limits.max_observation_tokens) == (35, 512, 512)
    assert (request.chat.thinking, request.chat.tokenizer, request.run_seed) == ("off", "/models/q", 7)
    assert (request.exact_logprobs, asked.with_tokens, asked.not_used, asked.warnings) == (True, True, {}, [])
    assert (request.limits.init_active_s, request.limits.run_active_s, request.limits.eval_active_s, request.wall_s) == (300, 300, 300, 610)


def test_what_has_no_effect_is_said_without_its_value() -> None:
    asked = read(
        {"api_key": "sk-secret", "model": "hosted_vllm/q", "custom_tokenizer": "Qwen/Qwen3-8B", "log_completions": True, "enable_som": True}
    )

    assert set(asked.not_used) == {"api_key", "model", "custom_tokenizer", "log_completions", "enable_som"}
    assert "sk-secret" not in repr(asked)


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"temperatur": 1.0}, "sampling_params.temperatur"),
        ({"zzz": 1.0}, "sampling_params.zzz"),
        ({"token_level_generation": "yes"}, "sampling_params.token_level_generation"),
    ],
)
def test_what_nobody_knows_is_refused(params: dict[str, object], field: str) -> None:
    with pytest.raises(Refusal) as refused:
        read(params)

    assert (refused.value.status, refused.value.field) == (422, field)


@pytest.mark.parametrize(
    "params", [{"temperature": "hot"}, {"temperature": True}, {"max_iterations": 0}, {"max_model_len": -1}, {"seed": -1}]
)
def test_a_value_that_cannot_be_is_refused_by_its_name_here(params: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        read(params)


def test_a_row_is_the_same_for_all_trajectories_and_keeps_what_its_task_reads() -> None:
    rows = [row_of({"data_source": "deepscaler", **ROW, "trajectory_id": number}, "math") for number in range(3)]

    assert rows[0] == rows[1] == rows[2] == {"id": "repo__issue__hash", "question": "1 + 1?", "answer": "2"}
    assert row_of({"data_source": "swebench", **ROW}, "swe")["instance_id"] == "repo__issue__hash"
    assert row_of({**ROW, "id": "own"}, "math")["id"] == "own"


def test_a_file_says_what_its_requests_cannot(tmp_path: Path) -> None:
    file = tmp_path / "requests.json"
    file.write_text(
        '{"*": {"capability": "isolated", "limits": {"run_active_s": 9}}, "math": {"options": {"tools": false}, "max_failed": 0}}'
    )
    request = read({"max_iterations": 3}, settings=GatewaySettings(requests_file=file)).request

    assert (request.capability, request.options, request.max_failed) == ("isolated", {"tools": False}, 0)
    assert (request.limits.run_active_s, request.limits.eval_active_s, request.limits.max_turns) == (9, 300, 3)


@pytest.mark.parametrize("text", ["{", "[]", '{"math": 3}', '{"math": {"capabilty": "isolated"}}'])
def test_a_file_that_says_nonsense_is_refused_at_the_start(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text)

    with pytest.raises(InvalidRequest, match=r"r\.json"):
        read_defaults(tmp_path / "r.json")


@pytest.mark.parametrize(
    "name", ["0123456789abcdef_89abcdef", "a/b", "../x", "a b", "é", "\ud800", "x" * 65, "-a", "a.b", "a\r\nb", "\0", "ID_1-2"]
)
def test_whatever_a_client_calls_its_job_has_one_name_that_fits_a_key(name: str) -> None:
    found = queue_name(name)

    assert PROMPT_ID.match(found)
    assert found == queue_name(name)
    assert (found == name) == bool(PROMPT_ID.match(name))
