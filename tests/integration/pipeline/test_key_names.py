"""The names of keys are built twice, in Python and in Lua. Here the two are compared, and what `keys.py` lists with what it builds."""

from __future__ import annotations

from importlib.resources import files

import pytest

from pipeline import keys as keys_module
from pipeline.keys import Keys, group_id, job_id, run_of, shard_of
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask

pytestmark = pytest.mark.one_server

AT_MS = 1_795_977_000_000


async def lua(client: AsyncClient, keys: Keys, *expressions: str, heads: tuple[str, ...] = ("lib",)) -> list[str]:
    """What expressions give after heads of scripts."""
    head = "\n".join((files("pipeline.scripts") / f"{name}.lua").read_text(encoding="utf-8") for name in heads)
    reply = await ask(client, "EVAL", f"{head}\nreturn {{{', '.join(expressions)}}}", 1, keys.meta)
    return [value.decode() for value in reply]


async def test_lua_and_python_build_the_same_names(client: AsyncClient, keys: Keys) -> None:
    pairs = {
        "stage_stream('init')": keys.stage_stream(Stage.INIT),
        "stage_stream('init', 'none')": keys.stage_stream(Stage.INIT, capability="none"),
        "stage_stream('init', 'isolated')": keys.stage_stream(Stage.INIT, capability="isolated"),
        "stage_stream('run', 'isolated')": keys.stage_stream(Stage.RUN, capability="isolated"),
        "stage_stream('run', 'none', 'n1')": keys.stage_stream(Stage.RUN, node="n1"),
        "stage_stream('eval')": keys.stage_stream(Stage.EVAL),
        "queue_key('r', 'none')": keys.queue("r"),
        "queue_key('r', '')": keys.queue("r"),
        "queue_key('r', 'isolated+network')": keys.queue("r", "isolated+network"),
        "results_key('r')": keys.results("r"),
        "job_key('r.p.0.1')": keys.job("r.p.0.1"),
        "body_key('r.p.0.1', 3, 'run')": keys.body("r.p.0.1", 3, "run"),
        "attached_key('r.p.0.1', 3)": keys.attached("r.p.0.1", 3),
        "prompt_key('r.p.0')": keys.prompt("r.p.0"),
        "template_key('r', 't')": keys.template("r", "t"),
        "group_key('r.p.0')": keys.group("r.p.0"),
        "group_key('r.p.0') .. ':m'": keys.members("r.p.0"),
        "run_key('r')": keys.run("r"),
        "open_key('r')": keys.open_units("r"),
        f"done_key('r', {AT_MS})": keys.done("r", AT_MS),
        "step_key('r', 7)": keys.step("r", 7),
        "P .. 's:reward'": keys.reward,
        "P .. 's:cancel'": keys.cancel,
        "P .. 's:dead'": keys.dead,
        "P .. 'w:' .. 'w1'": keys.worker("w1"),
        "P .. 'n:' .. 'n1'": keys.node("n1"),
        "P .. 'node:' .. 'n1'": keys.launched_node("n1"),
        "P .. 'launchers'": keys.launchers,
        "P .. 'meta'": keys.meta,
    }

    assert await lua(client, keys, *pairs) == list(pairs.values())


async def test_lua_and_python_build_the_same_names_in_the_pool(client: AsyncClient) -> None:
    keys = Keys.of_pool("rs")
    pairs = {
        "pool_run_key('r')": keys.pool_run("r"),
        "servers_key('r')": keys.pool_servers("r"),
        "server_key('r', 'unix:/s')": keys.pool_server("r", "unix:/s"),
        "leases_key('r', 'unix:/s')": keys.pool_leases("r", "unix:/s"),
        "calls_key('r', 'unix:/s')": keys.pool_calls("r", "unix:/s"),
        "aborts_key('r', 'unix:/s')": keys.pool_aborts("r", "unix:/s"),
        "P .. 'looks'": keys.looks,
    }

    assert await lua(client, keys, *pairs, heads=("lib", "pool")) == list(pairs.values())


async def test_all_keys_of_a_shard_share_its_slot(client: AsyncClient, keys: Keys) -> None:
    """Every script is single-slot: a cluster would refuse it otherwise."""
    names = [keys.meta, keys.job("r.p.0.1"), keys.results("r"), keys.stage_stream(Stage.RUN, node="n1"), keys.members("r.p.0")]

    assert {name[: name.index("}") + 1] for name in names} == {keys.tag}


def test_ids_are_made_of_what_they_belong_to() -> None:
    group = group_id("run1", "e0-i7", 2)

    assert (group, job_id(group, 3), run_of(job_id(group, 3))) == ("run1.e0-i7.2", "run1.e0-i7.2.3", "run1")


def test_the_shard_of_a_run_never_changes() -> None:
    """It is where its data is: another hash would lose every run on the next deployment."""
    assert [shard_of(run, 4) for run in ("run1", "swe-7b", "a", "nightly")] == [3, 1, 3, 2]
    assert {shard_of(f"r{number}", 3) for number in range(50)} == {0, 1, 2}


@pytest.mark.parametrize("run", ["run1", "a", "0", "swe-7b_x", "a" * 48])
def test_run_ids_that_fit(run: str) -> None:
    assert keys_module.RUN_ID.match(run)


@pytest.mark.parametrize("run", ["", "A", "a" * 49, "a.b", "a b", "a:b", "-a", "a\n", "a}", "ü"])
def test_run_ids_that_would_break_a_key(run: str) -> None:
    assert not keys_module.RUN_ID.match(run)


@pytest.mark.parametrize("prompt", ["", "a.b", "a|b", "a b", "a" * 65, "a\n", "_a"])
def test_prompt_ids_that_would_break_a_key(prompt: str) -> None:
    assert not keys_module.PROMPT_ID.match(prompt)


def test_permanent_is_what_the_list_says() -> None:
    keys = Keys("{rs:0}")
    permanent = [keys.meta, keys.reward, keys.cancel, keys.dead, keys.key("runs"), keys.key("active"), keys.key("active", "isolated")]
    permanent += [keys.stage_stream(stage) for stage in Stage]
    permanent += [keys.stage_stream(Stage.INIT, capability="isolated"), keys.stage_stream(Stage.RUN, node="n1")]
    passing = [keys.job("j"), keys.run("r"), keys.queue("r"), keys.results("r"), keys.members("g"), keys.worker("w"), keys.node("n")]
    passing += [
        keys.open_units("r"),
        keys.done("r", 0),
        keys.template("r", "t"),
        keys.prompt("u"),
        keys.key("s:results"),
        keys.key("metal"),
    ]

    assert all(keys.is_permanent(key) for key in permanent)
    assert not any(keys.is_permanent(key) for key in passing)


def test_every_permanent_key_is_explained() -> None:
    assert keys_module.__doc__ is not None
    for name in keys_module.PERMANENT:
        assert name in keys_module.__doc__, name
