"""Settings of a node: sizes and its end."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from ops.node.settings import NodeSettings, read_until
from ops.node.sizes import Size
from pipeline.errors import InvalidRequest
from pipeline.messages import Stage


def test_sizes_come_from_arguments_before_the_file(tmp_path: Path) -> None:
    (tmp_path / "rollstream.toml").write_text('[node]\nrun = "3x32"\ninit = 8\nnode = "gpu7"\n', encoding="utf-8")

    settings = NodeSettings.load(tmp_path / "rollstream.toml", run="96")

    assert (settings.node_name, settings.size(Stage.RUN, 4), settings.size(Stage.INIT, 4)) == ("gpu7", Size(96), Size(8))
    assert settings.size(Stage.EVAL, 4) == Size(8)


@pytest.mark.parametrize(("name", "value"), [("run", "many"), ("until", "soon"), ("node", "a b"), ("grace_s", 0), ("eval", True)])
def test_a_wrong_one_is_told_by_its_name(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=f"node.{name}"):
        NodeSettings.load(None, **{name: value})


def test_the_end_is_a_stretch_or_a_moment() -> None:
    assert read_until("90m", now_s=1000.0) == 6400.0
    assert read_until("1.5h", now_s=0.0) == 5400.0
    assert read_until("1795977000", now_s=0.0) == 1_795_977_000.0
    assert read_until("2026-12-01T06:00:00+00:00", now_s=0.0) == datetime.fromisoformat("2026-12-01T06:00:00+00:00").timestamp()
    assert read_until("", now_s=5.0) is None


def test_without_a_word_it_is_that_of_the_slurm_job() -> None:
    slurm = {"SLURM_JOB_END_TIME": "1795977000"}

    assert NodeSettings().ends_at_s(now_s=0.0, environ=slurm) == 1_795_977_000.0
    assert NodeSettings(until="1h").ends_at_s(now_s=0.0, environ=slurm) == 3600.0
    assert NodeSettings().ends_at_s(now_s=0.0, environ={}) is None
