"""Handles and limits as data."""

from __future__ import annotations

import pytest

from workers.sandbox import Limits, SandboxHandle

HANDLE = SandboxHandle(backend="process", node="n", sandbox_id="i", folder="/f", token="secret")


def test_a_handle_is_a_map_of_strings_and_comes_back_from_it_with_fields_of_a_newer_writer() -> None:
    values = HANDLE.to_map()

    assert all(type(value) is str for value in values.values())
    assert SandboxHandle.from_map({**values, "newer": 1}) == HANDLE


@pytest.mark.parametrize("change", [{"token": ""}, {"node": 3}, {"folder": None}])
def test_a_damaged_handle_says_which_field(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        SandboxHandle.from_map({**HANDLE.to_map(), **change})


def test_a_missing_field_is_named() -> None:
    values = HANDLE.to_map()
    del values["sandbox_id"]

    with pytest.raises(ValueError, match="sandbox_id"):
        SandboxHandle.from_map(values)


@pytest.mark.parametrize("limits", [{"open_files": 100}, {"cpu_s": 0}, {"memory_bytes": -1}, {"processes": 2}, {"disk_bytes": 0}])
def test_limits_that_cannot_work_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(limits))):
        Limits(**limits)
