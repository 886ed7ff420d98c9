"""The doubles that ship: what tests believe must itself be tested."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pipeline.keys import job_id
from pipeline.messages import Outcome
from pipeline.testing import (
    ServerKind,
    WaitedTooLong,
    a_group,
    a_job,
    a_segment,
    a_settlement,
    a_unit,
    found_servers,
    jobs_of,
    wait_in_thread,
    wait_until,
)


async def test_waiting_ends_with_the_condition() -> None:
    answers: Iterator[object] = iter([0, None, [], "yes"])

    await wait_until(lambda: next(answers), "something true")

    assert next(answers, None) is None


async def test_a_condition_may_be_awaited() -> None:
    async def holds() -> bool:
        return True

    await wait_until(holds, "it holds")


async def test_a_wait_in_vain_says_for_what_and_what_it_saw() -> None:
    started = time.monotonic()
    with pytest.raises(WaitedTooLong, match=r"not within 0\.05 s: the worker came \(last answer: 0\)"):
        await wait_until(lambda: 0, "the worker came", timeout_s=0.05)
    with pytest.raises(WaitedTooLong, match="the worker came"):
        wait_in_thread(lambda: False, "the worker came", timeout_s=0.05)

    assert time.monotonic() - started < 5


def test_the_servers_are_those_the_environment_names() -> None:
    found = found_servers({"ROLLSTREAM_TEST_SERVERS": "valkey=/a/valkey-server; redis7 = /b/redis-server;"})

    assert found == (ServerKind("valkey", Path("/a/valkey-server")), ServerKind("redis7", Path("/b/redis-server")))


def test_without_a_word_in_the_environment_the_servers_of_the_machine_are_found() -> None:
    found = found_servers({"PATH": ""})

    assert [kind.name for kind in found] in ([], ["valkey"])
    assert all(kind.binary.is_file() for kind in found)


def test_ids_of_builders_fit_together() -> None:
    group, job = a_group("run1", "p", members=3), a_job("run1", "p", member=2)

    assert jobs_of(group) == [job_id(group.id, member) for member in range(3)]
    assert jobs_of(group)[2] == job.job
    assert jobs_of(a_unit("run1", "single")) == ["run1.single.0"]


def test_a_builder_takes_fields_and_refuses_others() -> None:
    assert a_settlement(None).outcome is Outcome.INFRA_FAILURE
    assert a_settlement(0.0, turns=9).turns == 9
    with pytest.raises(TypeError):
        a_settlement(colour="red")


@pytest.mark.parametrize(("tokens", "sampled"), [(0, 0), (5, 0), (5, 5), (100, 30)])
def test_a_segment_keeps_promise_6(tokens: int, sampled: int) -> None:
    segment = a_segment(tokens, sampled)

    assert {len(array) for array in (segment.token_ids, segment.sampled_mask, segment.loss_mask, segment.logprobs)} == {tokens}
    assert segment.sampled_mask.sum() == sampled
    assert np.array_equal(np.isfinite(segment.logprobs), segment.sampled_mask == 1)
