"""The problems that ship with the task `swe`: each reference repairs its repository, and nothing does not."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.messages import Grade
from tests.judged import eval_context, spec_of
from workers.handlers.swe.handler import SweHandler
from workers.handlers.swe.layouts import LAYOUTS
from workers.handlers.task_data import Row, load_rows
from workers.sandbox.local import LocalSandboxes
from workers.sandbox.process import ProcessBackend

SIDE_BY_SIDE = 3


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_every_sample_scores_with_its_repair_only(place: Path) -> None:
    """Without walls: what runs is ours. Every third, and all where `ROLLSTREAM_TEST_ALL_CASES` is set: they take seconds, and
    `rollstream task preflight swe` is the same for all."""
    handler, slots = SweHandler(), asyncio.Semaphore(SIDE_BY_SIDE)
    rows = load_rows(SweHandler.samples[0], LAYOUTS).rows[:: 1 if os.environ.get("ROLLSTREAM_TEST_ALL_CASES") else 3]
    async with LocalSandboxes(ProcessBackend(), scratch_dir=place / "s", run_dir=place / "r", node="here") as sandboxes:

        async def graded(row: Row) -> tuple[Grade, Grade]:
            spec = spec_of("swe", row)
            spec = replace(spec, job=f"{spec.job}-{row['id']}")
            gold = handler.gold(spec)
            assert gold is not None
            async with slots:
                right = await handler.evaluate(eval_context(spec, gold, sandboxes))
                return right, await handler.evaluate(eval_context(spec, handler.empty(spec), sandboxes))

        found = await asyncio.gather(*map(graded, rows))

    everything = {"resolved": 1.0, "f2p": 1.0, "p2p": 1.0, "tampering": 0.0, "applied": 1.0}
    for row, (right, nothing) in zip(rows, found, strict=True):
        assert (right.reward, right.components) == (1.0, everything), (row["id"], right.details)
        assert (nothing.reward, nothing.details["reason"]) == (0.0, "empty_patch"), row["id"]
