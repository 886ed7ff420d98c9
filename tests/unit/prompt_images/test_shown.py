"""Images of a record for people: named with their tokens, saved by their digests; and the tool that shows what a cell drew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ops.trajectory.image_files import save_images
from ops.trajectory.view import image_lines, image_maps
from pipeline.blobs import IMAGE, Life, SharedFolder
from pipeline.messages import Blob, SegmentImage, Trajectory
from pipeline.testing import a_trajectory
from tests.prompt_image_files import a_jpeg, a_png
from tests.unit.sandbox.test_python_tool import RecordedKernel, a_result
from workers.llm.scoring_plan import plan_of
from workers.llm.scripted import InProcessBackend
from workers.tools import ShowsImages
from workers.tools.python_tool import MAX_IMAGES, PythonTool

JOB = "run1.e0-i0.0.0"
PNG, JPEG = a_png(56, 28), a_jpeg(28, 28)


@pytest.fixture
def store(tmp_path: Path) -> SharedFolder:
    return SharedFolder(tmp_path / "blobs", min_free_bytes=0, fsync=False)


def seen(store: SharedFolder, *files: bytes) -> Trajectory:
    """A trajectory whose first tokens stand for images."""
    life = Life.new(JOB, 1)
    blobs = [store.put(life, IMAGE, np.frombuffer(file, np.uint8), part=number) for number, file in enumerate(files)]
    images = tuple(
        SegmentImage(start=number, end=number + 1, media_type="image/png", width=56, height=28, blob=blob)
        for number, blob in enumerate(blobs)
    )
    whole = a_trajectory()
    return replace(whole, segments=(replace(whole.segments[0], images=images),))


def test_each_image_is_named_with_its_tokens_and_its_digest(store: SharedFolder) -> None:
    trajectory = seen(store, PNG)
    (blob,) = (image.blob for image in trajectory.segments[0].images)

    (line,) = image_lines(trajectory)
    (shown,) = image_maps(trajectory)

    assert line == f"segment 0, tokens 0 to 1: image/png 56 x 28, {len(PNG)} bytes, sha256 {blob.digest}, {blob.uri}"
    assert (shown["segment"], shown["start"], shown["width"]) == (0, 0, 56)


def test_images_are_saved_once_each_by_their_digest(store: SharedFolder, tmp_path: Path) -> None:
    trajectory = seen(store, PNG, JPEG, PNG)

    saved = [*save_images(trajectory, JOB, tmp_path / "out", store)]

    assert {path.suffix: path.read_bytes() for path, _ in saved} == {".png": PNG, ".jpg": JPEG}
    assert sorted(tmp_path.joinpath("out").iterdir()) == sorted(path for path, _ in saved)


def test_an_image_that_cannot_be_had_is_told_and_the_others_are_saved(store: SharedFolder, tmp_path: Path) -> None:
    trajectory = seen(store, PNG, JPEG)
    first, second = trajectory.segments[0].images
    hostile = Blob(name=IMAGE, digest="../../evil", dtype="uint8", shape=(1,), n_bytes=1, uri="blob:../../evil")
    broken = replace(trajectory, segments=(replace(trajectory.segments[0], images=(replace(first, blob=hostile), second)),))

    (_, why), (path, fine) = save_images(broken, JOB, tmp_path / "out", store)

    assert "expected blob:<run>/<job>" in why
    assert (path.read_bytes(), fine) == (JPEG, "")


async def test_python_gives_images_only_where_it_was_told_to() -> None:
    kernel = RecordedKernel(a_result("[shown below: image/png, 56 x 28]\n", images=(PNG,)))
    tool = PythonTool(kernel)
    assert isinstance(tool, ShowsImages)
    asked = []
    for shows in (False, True):
        tool.shows_images = shows
        result = await tool({"code": "x"}, timeout_s=5)
        asked.append(kernel.max_images)

    assert asked == [0, MAX_IMAGES]
    assert result.images == (PNG,)


async def test_logprobs_behind_an_image_are_not_compared_with_a_server_that_is_not_shown_it(store: SharedFolder) -> None:
    trajectory, caps = seen(store, PNG), await InProcessBackend().probe()
    without = replace(trajectory, segments=(replace(trajectory.segments[0], images=()),))
    version = trajectory.segments[0].versions[0].version

    plan = plan_of(trajectory, caps, version)

    assert (plan.at_once, plan.one_by_one) == ({}, [])
    assert plan.skipped == {"behind an image, and those are not sent": int(trajectory.segments[0].sampled_mask.sum())}
    assert not plan_of(without, caps, version).skipped
