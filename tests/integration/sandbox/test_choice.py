"""Which backend serves a node: found out by trying, never by falling back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.errors import InvalidRequest
from tests.contract.sandbox.kinds import required
from workers.sandbox import Isolation
from workers.sandbox.choice import choose_backend


def left_in(place: Path) -> list[str]:
    return sorted(path.name for folder in ("scratch", "run") if (place / folder).exists() for path in (place / folder).iterdir())


async def test_auto_is_the_first_with_walls_that_works_and_never_the_one_without(place: Path) -> None:
    choice = await choose_backend("auto", scratch_dir=place / "scratch", run_dir=place / "run", every=True)

    working = [name for name in ("apptainer", "bubblewrap") if choice.probes[name].works]
    assert (choice.backend.name if choice.backend else None) == (working[0] if working else None)
    assert choice.probes["process"].works
    assert (Isolation.ISOLATED in choice.isolation) == bool(working)
    for name, probe in choice.probes.items():
        assert probe.works or probe.why, name
        assert probe.works or f"{name}: {probe.why}" in choice.why_none()
    assert set(working) >= required() - {"process"}
    assert left_in(place) == []


async def test_a_backend_that_is_named_and_does_not_work_gives_no_other(place: Path) -> None:
    """As root no walls are built; as anybody else this is the backend's own test."""
    choice = await choose_backend("bubblewrap", scratch_dir=place / "scratch", run_dir=place / "run")

    assert list(choice.probes) == ["bubblewrap"]
    if os.geteuid() == 0:
        assert choice.backend is None
        assert "not built by root" in choice.why_none()
        assert "setpriv --reuid=USER" in choice.why_none()
    else:
        assert (choice.backend is not None) == (not choice.probes["bubblewrap"].why)


async def test_the_backend_without_walls_offers_none_and_only_when_it_is_named(place: Path) -> None:
    choice = await choose_backend("process", scratch_dir=place / "scratch", run_dir=place / "run", accept_untrusted=True)

    assert choice.backend is not None
    assert choice.isolation == {Isolation.NONE}


@pytest.mark.parametrize(
    ("wanted", "accept_untrusted", "redis_url", "complaint"),
    [
        ("docker", False, "", "expected auto or one of apptainer, bubblewrap, process, got 'docker'"),
        ("auto", True, "", "for the backend process only"),
        ("process", True, "redis://somewhere", "refused with a Redis address"),
    ],
)
async def test_what_may_not_be_asked_for_is_refused_before_anything_is_made(
    place: Path, wanted: str, accept_untrusted: bool, redis_url: str, complaint: str
) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        await choose_backend(
            wanted, scratch_dir=place / "scratch", run_dir=place / "run", accept_untrusted=accept_untrusted, redis_url=redis_url
        )

    assert not (place / "scratch").exists()
    assert not (place / "run").exists()
