"""Builds: the three levels of the cache, what is copied and what scripts change, and what a killed or failed build leaves."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pipeline.errors import InvalidRequest
from tests.image_files import a_simple_archive
from tests.integration.images.conftest import Run, leftovers
from tests.integration.images.test_kills import OF_A_BUILD
from workers.sandbox.errors import ImageError, ImageMissing
from workers.sandbox.images import ImageStore
from workers.sandbox.images.build import Built, build
from workers.sandbox.images.definition import Definition
from workers.sandbox.images.locks import Say

DEFINITION = """
base = "base"
env = { A = "1" }
workdir = "/repo"
[version]
run = "version script"
[lock]
copy = { "lock.txt" = "/opt/lock.txt" }
run = "lock script"
[source]
copy = { "src" = "/repo" }
run = "source script"
"""


class ScriptedScripts:
    """Stands in for sandboxes: each script makes a file of its name; one that begins with `fail` fails, and so does the `fails_at`th."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ran: list[str] = []
        self.fails_at = 0
        self._count = 0

    @contextlib.contextmanager
    def run(self, root: Path, script: str, *, env: Mapping[str, str], network: bool, say: Say) -> Iterator[Path]:
        self.ran.append(script)
        self._count += 1
        if script.startswith("fail") or self._count == self.fails_at:
            raise ImageError("build", "the script ended with 3: on purpose")
        upper = self._folder / f"upper{self._count}"
        (upper / "tmp").mkdir(parents=True)
        (upper / script.replace(" ", "-")).write_text(env.get("A", ""))
        yield upper


@pytest.fixture
def scripts(tmp_path: Path) -> ScriptedScripts:
    return ScriptedScripts(tmp_path)


@pytest.fixture
def definition(store: ImageStore, tmp_path: Path) -> Path:
    store.pull("base", f"oci-archive:{a_simple_archive(tmp_path)}")
    folder = tmp_path / "definition"
    (folder / "src").mkdir(parents=True)
    (folder / "src/main.py").write_text("print(1)")
    (folder / "src/link").symlink_to("main.py")
    (folder / "lock.txt").write_text("a==1")
    (folder / "task.toml").write_text(DEFINITION)
    return folder / "task.toml"


def built(store: ImageStore, definition: Path, scripts: ScriptedScripts, *, refresh: bool = False) -> Built:
    return build(store, Definition.read(definition), scripts, refresh=refresh)


def test_a_build_has_the_base_the_copies_and_what_scripts_made(store: ImageStore, definition: Path, scripts: ScriptedScripts) -> None:
    done = built(store, definition, scripts)

    assert (done.began_from, done.record.name, done.record.kind) == ("base", "task", "build")
    assert scripts.ran == ["version script", "lock script", "source script"]
    with store.lease("task") as lease:
        names = sorted(str(path.relative_to(lease.root)) for path in lease.root.rglob("*") if not path.is_dir())
        assert names == ["bin/hello", "lock-script", "opt/lock.txt", "repo/link", "repo/main.py", "source-script", "version-script"]
        assert not (lease.root / "tmp").exists()
        assert (dict(lease.env), lease.workdir) == ({"PATH": "/opt/bin:/bin", "A": "1"}, "/repo")
    assert len(store.node.images()) == 4
    assert all(wrong == [] for _, wrong in store.damages())
    assert leftovers(store) == []


@pytest.mark.parametrize(
    ("change", "began_from", "ran"),
    [
        (lambda folder: None, "source", []),
        (lambda folder: (folder / "src/main.py").write_text("print(2)"), "lock", ["source script"]),
        (lambda folder: (folder / "src/main.py").chmod(0o755), "lock", ["source script"]),
        (lambda folder: (folder / "lock.txt").write_text("a==2"), "version", ["lock script", "source script"]),
        (
            lambda folder: (folder / "task.toml").write_text(DEFINITION.replace("version script", "version script 2")),
            "base",
            ["version script 2", "lock script", "source script"],
        ),
        (lambda folder: (folder / "unrelated").write_text("x"), "source", []),
    ],
    ids=["nothing", "source", "mode", "lock", "version", "unrelated"],
)
def test_a_build_begins_at_the_most_exact_level_that_is_there(
    store: ImageStore, definition: Path, scripts: ScriptedScripts, change: object, began_from: str, ran: list[str]
) -> None:
    built(store, definition, scripts)
    scripts.ran.clear()

    assert callable(change)
    change(definition.parent)

    assert built(store, definition, scripts).began_from == began_from
    assert scripts.ran == ran


def test_another_base_of_the_same_name_is_another_build(
    store: ImageStore, definition: Path, scripts: ScriptedScripts, tmp_path: Path
) -> None:
    first = built(store, definition, scripts)
    store.pull("base", f"oci-archive:{a_simple_archive(tmp_path, b'new base')}")

    second = built(store, definition, scripts)

    assert second.began_from == "base"
    assert second.record.digest != first.record.digest
    with store.lease("task") as lease:
        assert (lease.root / "bin/hello").read_bytes() == b"new base"


def test_a_refresh_makes_all_levels_again(store: ImageStore, definition: Path, scripts: ScriptedScripts) -> None:
    built(store, definition, scripts)
    assert built(store, definition, scripts, refresh=True).began_from == "base"
    assert len(scripts.ran) == 6


@pytest.mark.parametrize("fails_at", [4, 6])
def test_a_refresh_that_fails_leaves_what_was_there(store: ImageStore, definition: Path, scripts: ScriptedScripts, fails_at: int) -> None:
    """All levels were removed first, so that a refresh without a network left the tasks that name the image without one."""
    record = built(store, definition, scripts).record
    scripts.fails_at = fails_at

    with pytest.raises(ImageError, match="on purpose"):
        built(store, definition, scripts, refresh=True)

    assert store.node.damage(record.digest) == []
    with store.lease("task") as lease:
        assert (lease.root / "source-script").read_text() == "1"
    assert leftovers(store) == []


def test_a_refresh_waits_for_nobody_who_uses_a_level_and_removes_nothing_of_it(
    store: ImageStore, definition: Path, scripts: ScriptedScripts
) -> None:
    record = built(store, definition, scripts).record

    with store.lease("task"), pytest.raises(ImageError, match="in use"):
        built(store, definition, scripts, refresh=True)

    assert store.node.damage(record.digest) == []


def test_levels_share_files_and_removing_one_hurts_no_other(store: ImageStore, definition: Path, scripts: ScriptedScripts) -> None:
    record = built(store, definition, scripts).record
    base = store.shared.find("base")
    assert base is not None
    there, here = (store.node.folder / digest / "rootfs/bin/hello" for digest in (base.digest, record.digest))
    assert there.stat().st_ino == here.stat().st_ino

    assert store.node.remove(base.digest)

    assert store.node.damage(record.digest) == []


def test_a_failed_script_is_told_and_the_levels_below_stay(store: ImageStore, definition: Path, scripts: ScriptedScripts) -> None:
    definition.write_text(DEFINITION.replace("source script", "fail"))

    with pytest.raises(ImageError, match="ended with 3: on purpose"):
        built(store, definition, scripts)

    assert leftovers(store) == []
    with pytest.raises(ImageMissing):
        store.lease("task")
    definition.write_text(DEFINITION)
    assert built(store, definition, scripts).began_from == "lock"


def test_without_its_base_a_build_says_what_brings_it(store: ImageStore, definition: Path, scripts: ScriptedScripts) -> None:
    definition.write_text('base = "python:3.11"')

    with pytest.raises(ImageMissing, match=r"rollstream image pull python:3\.11"):
        built(store, definition, scripts)


def test_a_removed_build_is_missing_and_names_what_builds_it(store: ImageStore, definition: Path, scripts: ScriptedScripts) -> None:
    store.node.remove(built(store, definition, scripts).record.digest)

    with pytest.raises(ImageMissing, match="rollstream image build"):
        store.lease("task")


@pytest.mark.parametrize("step", OF_A_BUILD)
def test_a_killed_build_is_done_by_the_next(image: Run, store: ImageStore, definition: Path, step: str) -> None:
    definition.write_text(DEFINITION.replace("run =", "#"))  # root has no sandboxes; copies alone pass the same steps

    killed = image("build", str(definition), ROLLSTREAM_FAILPOINT=step)

    if killed.returncode != -signal.SIGKILL:
        pytest.fail(killed.stderr)
    again = image("build", str(definition), "--json")
    assert again.returncode == 0, again.stderr
    assert all(wrong == [] for _, wrong in store.damages())
    assert leftovers(store) == []


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("base = 1", "base"),
        ('base = "a"\nbased = 1', "based"),
        ('base = "a"\nnetwork = "yes"', "network"),
        ('base = "a"\nworkdir = "rel"', "workdir"),
        ('base = "a"\n[source]\ncopy = { "../x" = "/x" }', "source.copy"),
        ('base = "a"\n[source]\ncopy = { "/etc/passwd" = "/x" }', "source.copy"),
        ('base = "a"\n[lock]\ncopy = { "x" = "../x" }', "lock.copy"),
        ('base = "a"\n[version]\nscript = "x"', "version.script"),
        ("", ""),
        ("= 1", ""),
    ],
)
def test_a_definition_that_cannot_be_names_the_field(tmp_path: Path, text: str, field: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)

    with pytest.raises(InvalidRequest) as raised:
        Definition.read(path)
    assert raised.value.field == field or not field
