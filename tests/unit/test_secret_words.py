"""What looks for secrets of tests finds them: in a command line, an environment, a file, and names them without telling them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.secret_words import Watch, a_secret, end_of_test, files_with_secrets, masked, words_in

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks into /proc")
WAITS = "import sys; print('ready', flush=True); sys.stdin.readline()"


def findings(*arguments: str, **variables: str) -> list[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS, *arguments], env={**os.environ, **variables}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        watch = Watch()
        watch.begin()
        found = watch.end()
    end_of_test()  # what it has found as well is asserted here
    return [line.replace(str(process.pid), "N") for line in found]


def test_a_secret_is_found_in_a_command_line_and_an_environment_and_named() -> None:
    assert findings(a_secret("key"))[0].startswith("cmdline of process N (python")
    found = findings(KEY=a_secret("key"))
    assert len(found) == 1
    assert found[0].startswith("environ of process N (python")
    assert found[0].endswith("has hush-key")
    assert findings(KEY=a_secret("key", may_be_in_environments=True)) == []


def test_a_secret_is_found_in_files_but_where_it_may_be(tmp_path: Path) -> None:
    word, strange = a_secret("pass"), "hush-pass-" + "0" * 32
    for name in ("kept", "run.log.1", "note"):
        (tmp_path / name).write_text(f"it is {word}!")
    (tmp_path / "none").write_text(strange)

    found = files_with_secrets(tmp_path, but=(tmp_path / "kept",))

    assert sorted(found) == [f"{tmp_path / name}: ...'it is <hush-pass>!'..." for name in ("note", "run.log.1")]
    assert len(files_with_secrets(tmp_path, logs_only=True)) == 1
    assert (words_in(f"{word} {strange}"), masked(f"{word} {strange}")) == ({word}, f"<hush-pass> {strange}")
    (tmp_path / "run.log.1").unlink()
