"""A command whose package is missing says which extra brings it."""

import pytest

from ops.extras import extra_that_brings, how_to_get, naming_extras

REQUIREMENTS = [
    "redis[hiredis]<9,>=8.1",
    'jupyter_client<9,>=8.10; extra == "workers"',
    'uvloop<0.24; sys_platform != "win32" and extra == "workers"',
    'prometheus-client<0.27,>=0.26; extra == "ops"',
]


@pytest.mark.parametrize(
    ("module", "extra"),
    [("prometheus_client", "ops"), ("jupyter_client", "workers"), ("uvloop", "workers"), ("redis", ""), ("unheard_of", None)],
)
def test_the_extra_of_a_module_is_read_off_the_requirements(module: str, extra: str | None) -> None:
    assert extra_that_brings(module, REQUIREMENTS) == extra


def test_what_to_install_is_said_in_one_line() -> None:
    assert how_to_get("prometheus_client", REQUIREMENTS).endswith("pip install 'rollstream[ops]'")
    assert "--force-reinstall rollstream" in how_to_get("redis", REQUIREMENTS)
    assert "pip install unheard_of" in how_to_get("unheard_of", REQUIREMENTS)


def test_a_missing_package_ends_a_command_with_that_line() -> None:
    with pytest.raises(SystemExit, match="a_package_that_is_not_there"), naming_extras():
        import a_package_that_is_not_there  # type: ignore[import-not-found]  # noqa: F401


def test_a_missing_module_of_our_own_is_a_bug_and_shows_as_one() -> None:
    with pytest.raises(ModuleNotFoundError), naming_extras():
        import pipeline.a_module_that_is_not_there  # type: ignore[import-not-found]  # noqa: F401
