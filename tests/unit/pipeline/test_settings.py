"""Settings: argument before environment before file before default, and every mistake is named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import InvalidRequest
from pipeline.settings import QueueSettings, read_table


@pytest.fixture(autouse=True)
def bare_environment(tmp_path: Path) -> Iterator[None]:
    """No setting of whoever runs the tests, and a folder without a `rollstream.toml`."""
    before, folder = dict(os.environ), Path.cwd()
    for name in [name for name in os.environ if name.startswith("ROLLSTREAM_")]:
        del os.environ[name]
    os.chdir(tmp_path)
    yield
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(before)


def write(text: str, name: str = "rollstream.toml") -> Path:
    path = Path(name)
    path.write_text(text, encoding="utf-8")
    return path


def test_without_anything_said_the_defaults_hold() -> None:
    assert QueueSettings.load() == QueueSettings()


def test_each_source_overrides_the_ones_below() -> None:
    write('[queue]\nnamespace = "file"\nshards = 2\nlease_s = 11.0\n')
    os.environ["ROLLSTREAM_SHARDS"] = "3"
    os.environ["ROLLSTREAM_LEASE_S"] = "12"

    settings = QueueSettings.load(lease_s=13.0, namespace=None)

    assert (settings.namespace, settings.shards, settings.lease_s) == ("file", 3, 13.0)


def test_an_empty_variable_is_not_said() -> None:
    os.environ["ROLLSTREAM_NAMESPACE"] = ""

    assert QueueSettings.load().namespace == "rs"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("[queue]\nlease = 3\n", "queue.lease"),
        ('[queue]\nshards = "many"\n', "queue.shards"),
        ("[queue]\nshards = 0\n", "queue.shards"),
        ("[queue]\nshards = 65\n", "queue.shards"),
        ("[queue]\nlease_s = 0.1\n", "queue.lease_s"),
        ('[queue]\nnamespace = "{rs}"\n', "queue.namespace"),
        ('[queue]\nnamespace = "UPPER"\n', "queue.namespace"),
        ('[queue]\nnamespace = "rs\\n"\n', "queue.namespace"),
        ("[queue]\nmax_body_bytes = 10\n", "queue.max_body_bytes"),
        ("[queue]\nrun_ttl_s = inf\n", "queue.run_ttl_s"),
        ("[queue]\nlease_s = nan\n", "queue.lease_s"),
    ],
)
def test_a_mistake_is_named_with_its_field(text: str, field: str) -> None:
    write(text)

    with pytest.raises(InvalidRequest) as refused:
        QueueSettings.load()

    assert refused.value.field == field
    assert field in str(refused.value)


@pytest.mark.parametrize("text", ["[queue", "queue = 3\n", "[[queue]]\n", "\x00"])
def test_a_file_that_cannot_be_read_is_named(text: str) -> None:
    path = write(text, "mine.toml")

    with pytest.raises(InvalidRequest, match=r"mine\.toml"):
        QueueSettings.load(path)


def test_a_file_that_is_asked_for_must_be_there() -> None:
    with pytest.raises(InvalidRequest, match="does not exist"):
        QueueSettings.load(Path("nowhere.toml"))


def test_a_file_that_is_not_text_is_named() -> None:
    path = Path("latin.toml")
    path.write_bytes(b'[queue]\nnamespace = "\xff"\n')

    with pytest.raises(InvalidRequest, match=r"latin\.toml"):
        QueueSettings.load(path)


def test_other_tables_belong_to_others() -> None:
    path = write("[worker]\nslots = 3\n")

    assert QueueSettings.load(path) == QueueSettings()
    assert read_table(path, "worker") == {"slots": 3}


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        QueueSettings().shards = 2


def test_a_password_is_read_when_it_is_asked_for_and_not_shown() -> None:
    secret = write("first\n", "secret")
    settings = QueueSettings(redis_password_file=secret)
    assert settings.password is not None
    assert settings.password.get_secret_value() == "first"

    secret.write_text("second", encoding="utf-8")

    assert settings.password.get_secret_value() == "second"
    assert "second" not in f"{settings!r}{settings.password!r}{settings.model_dump()}"

    secret.unlink()
    with pytest.raises(FileNotFoundError, match=r"redis_password_file cannot be read.*secret"):
        _ = settings.password
