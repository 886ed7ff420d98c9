"""What names mean, what a lease promises, what `check` finds, and what goes when the budget is used up."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.errors import InvalidRequest
from pipeline.messages import Stage
from tests.image_files import a_file, a_layer, a_layout, a_sif, a_simple_archive
from tests.integration.images.conftest import leftovers
from workers.sandbox.errors import BadImage, ImageError, ImageMissing
from workers.sandbox.images import ImageInterrupted, ImageSettings, ImageStore
from workers.stages.failures import failure_of


def test_a_pulled_archive_is_leased_with_what_its_maker_set(store: ImageStore, tmp_path: Path) -> None:
    store.pull("task", f"oci-archive:{a_simple_archive(tmp_path)}")

    with store.lease("task") as lease:
        assert (lease.root / "bin/hello").read_bytes() == b"hello"
        assert dict(lease.env) == {"PATH": "/opt/bin:/bin"}
        assert lease.workdir == "/srv"
    assert leftovers(store) == []


def test_a_name_that_nobody_brought_is_missing_and_the_record_names_the_command(store: ImageStore) -> None:
    with pytest.raises(ImageMissing) as raised:
        store.lease("swebench/x:latest")

    failure = failure_of(Stage.INIT, raised.value)
    assert (failure.kind, failure.boundary, failure.retryable) == ("image_missing", "sandbox", False)
    assert "rollstream image pull swebench/x:latest" in failure.message


def test_a_name_is_never_guessed(store: ImageStore, tmp_path: Path) -> None:
    """`docker://python:3` brought under that name is no `python:3`, and a file that lies about is no image."""
    archive = a_simple_archive(tmp_path)
    store.pull("docker://python:3", f"oci-archive:{archive}")

    for name in ("python:3", "docker://python", f"oci-archive:{archive}"):
        with pytest.raises(ImageMissing):
            store.lease(name)


def test_a_removed_image_is_extracted_again_from_its_archive(store: ImageStore, tmp_path: Path) -> None:
    record = store.pull("task", f"oci-archive:{a_simple_archive(tmp_path)}")
    assert store.node.remove(record.digest)

    with store.lease("task") as lease:
        assert (lease.root / "bin/hello").read_bytes() == b"hello"


@pytest.mark.parametrize("change", ["gone", "other"])
def test_an_archive_that_is_gone_or_another_image_now_makes_a_removed_image_missing(store: ImageStore, tmp_path: Path, change: str) -> None:
    archive = a_simple_archive(tmp_path)
    record = store.pull("task", f"oci-archive:{archive}")
    store.node.remove(record.digest)

    if change == "other":
        shutil.copy(a_simple_archive(tmp_path, b"other"), archive)
    else:
        archive.unlink()

    with pytest.raises(ImageMissing, match="rollstream image pull task"):
        store.lease("task")
    assert leftovers(store) == []


def test_a_pull_of_the_same_name_again_moves_it_and_the_old_image_stays_for_those_that_use_it(store: ImageStore, tmp_path: Path) -> None:
    store.pull("task", f"oci-archive:{a_simple_archive(tmp_path, b'one')}")
    with store.lease("task") as old:
        store.pull("task", f"oci-archive:{a_simple_archive(tmp_path, b'two')}")
        assert not store.node.remove(old.digest)
        assert (old.root / "bin/hello").read_bytes() == b"one"
        with store.lease("task") as new:
            assert (new.root / "bin/hello").read_bytes() == b"two"


def test_a_folder_is_an_image_by_its_content(store: ImageStore, tmp_path: Path) -> None:
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "a").write_text("1")
    first = store.pull("one", f"folder:{folder}")
    assert store.pull("two", f"folder:{folder}").digest == first.digest

    (folder / "a").write_text("2")

    assert store.pull("one", f"folder:{folder}").digest != first.digest
    with store.lease("one") as lease:
        assert (lease.root / "a").read_text() == "2"


def test_a_damaged_archive_brings_nothing(store: ImageStore, tmp_path: Path) -> None:
    archive = a_simple_archive(tmp_path)
    archive.write_bytes(archive.read_bytes()[:3000])

    with pytest.raises(BadImage):
        store.pull("task", f"oci-archive:{archive}")
    assert leftovers(store) == []
    assert store.shared.find("task") is None


def test_a_hostile_layer_brings_nothing(store: ImageStore, tmp_path: Path) -> None:
    layout = a_layout(tmp_path / "l", a_layer(a_file("fine")), a_layer(a_file("../evil")))

    with pytest.raises(BadImage, match="leads out"):
        store.pull("task", f"oci:{layout}")
    assert leftovers(store) == []
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize("source", ["", "ftp://x", "-e"])
def test_what_is_no_source_is_the_callers_mistake(store: ImageStore, source: str) -> None:
    with pytest.raises(InvalidRequest):
        store.pull("not a name", source)


def test_an_interrupted_pull_leaves_nothing(tmp_path: Path) -> None:
    stop = threading.Event()
    store = ImageStore(tmp_path / "shared", tmp_path / "node", stop=stop)
    store.node.open()
    stop.set()

    with pytest.raises(ImageInterrupted):
        store.pull("task", f"oci-archive:{a_simple_archive(tmp_path)}")
    assert leftovers(store) == []


# ---- SIF


def test_a_sif_is_kept_once_for_all_nodes_and_extracted_on_each(store: ImageStore, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / ".singularity.d/env").mkdir(parents=True)
    (tree / ".singularity.d/env/10-docker2singularity.sh").write_text(
        '#!/bin/sh\nexport PATH="/opt/x:/bin"\nexport LANG="${LANG:-"C.UTF-8"}"\nexport Q="${Q:-"a \\"b\\" \\$c"}"\nreboot\n'
    )
    (tree / "hello").write_text("hi")
    sif = a_sif(tmp_path / "x.sif", tree)

    record = store.pull("task", f"sif:{sif}", extract=False)
    assert store.node.images() == []
    sif.unlink()
    other = ImageStore(store.shared.folder, tmp_path / "other-node")
    other.node.open()

    for node in (store, other):
        with node.lease("task") as lease:
            assert (lease.root / "hello").read_text() == "hi"
            assert dict(lease.env) == {"PATH": "/opt/x:/bin", "LANG": "C.UTF-8", "Q": 'a "b" $c'}
    assert [path.name for path in (store.shared.folder / "sif").iterdir()] == [f"{record.digest}.sif"]
    assert leftovers(store) == []


@pytest.mark.parametrize("damage", ["byte", "cut", "gone"])
def test_a_damaged_sif_is_never_extracted(store: ImageStore, tmp_path: Path, damage: str) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "hello").write_text("hi")
    record = store.pull("task", f"sif:{a_sif(tmp_path / 'x.sif', tree)}", extract=False)
    file = store.shared.sif(record.sif)
    content = bytearray(file.read_bytes())

    if damage == "byte":
        content[-50] ^= 1
        file.write_bytes(content)
    elif damage == "cut":
        file.write_bytes(content[: len(content) // 2])
    else:
        file.unlink()

    with pytest.raises(ImageError):
        store.lease("task")
    assert [wrong for _, wrong in store.damages() if wrong] != []
    assert leftovers(store) == []


def test_a_file_that_is_no_sif_is_refused(store: ImageStore, tmp_path: Path) -> None:
    file = tmp_path / "x.sif"
    for content in (b"", b"not a sif" * 100, b"\0" * 32 + b"SIF_MAGIC\0" + b"\xff" * 200):
        file.write_bytes(content)
        with pytest.raises(BadImage):
            store.pull("task", f"sif:{file}")
    assert leftovers(store) == []


def test_a_sif_that_unpacks_to_too_much_is_ended(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "bomb").write_bytes(bytes(40_000_000))
    store = ImageStore(tmp_path / "shared", tmp_path / "node", ImageSettings(max_image_gib=0.01))
    store.node.open()
    (tree / "more").write_bytes(os.urandom(15_000_000))

    with pytest.raises(BadImage, match="more than an image may have"):
        store.pull("task", f"sif:{a_sif(tmp_path / 'x.sif', tree)}")
    assert leftovers(store) == []


# ---- Apptainer


def a_program(path: Path, script: str) -> str:
    """A stand-in for Apptainer that writes down how it was called."""
    path.write_text(f'#!/bin/sh\nfor word in "$@"; do echo "$word"; done > "{path}.called"\n{script}\n')
    path.chmod(0o755)
    return str(path)


def test_a_registry_is_asked_through_apptainer(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "hello").write_text("hi")
    sif = a_sif(tmp_path / "x.sif", tree)
    program = a_program(tmp_path / "apptainer", f'echo "INFO: fetching"; test -d "$APPTAINER_TMPDIR" && cp "{sif}" "$3"')
    store = ImageStore(tmp_path / "shared", tmp_path / "node", ImageSettings(apptainer=program))
    store.node.open()
    said: list[str] = []

    store.pull("swebench/x:latest", say=said.append)

    called = (tmp_path / "apptainer.called").read_text().split("\n")
    assert called[:2] == ["pull", "--disable-cache"]
    assert called[2].startswith(str(tmp_path / "shared/sif/.new-"))
    assert called[3] == "docker://swebench/x:latest"
    assert "INFO: fetching" in said
    with store.lease("swebench/x:latest") as lease:
        assert (lease.root / "hello").read_text() == "hi"
    assert leftovers(store) == []


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ('echo "FATAL: denied https://user:secretword@host/x" >&2; exit 255', "FATAL: denied"),
        ("exit 0", "wrote no file"),
        ('echo half > "$3"; sleep 60', "did not end within"),
    ],
)
def test_a_fetch_that_fails_says_why_and_leaves_nothing(tmp_path: Path, script: str, expected: str) -> None:
    settings = ImageSettings(apptainer=a_program(tmp_path / "apptainer", script), timeout_s=0.5 if "sleep" in script else 20)
    store = ImageStore(tmp_path / "shared", tmp_path / "node", settings)
    store.node.open()

    with pytest.raises(ImageError, match=expected) as raised:
        store.pull("docker://x/y")

    assert raised.value.retryable
    assert "secretword" not in str(raised.value)
    assert leftovers(store) == []


def test_without_apptainer_a_registry_says_what_to_do(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "shared", tmp_path / "node", ImageSettings(apptainer="no-such-program"))
    store.node.open()

    with pytest.raises(ImageError, match=r"Apptainer is needed.*--source oci-archive"):
        store.pull("docker://x/y")


# ---- check


@pytest.mark.parametrize(
    ("hurt", "expected"),
    [
        (lambda root: (root / "bin/hello").write_bytes(b"hellO"), "bin/hello: changed"),
        (lambda root: (root / "bin/hello").chmod(0o700), "bin/hello: changed"),
        (lambda root: (root / "bin/hello").unlink(), "bin/hello: missing"),
        (lambda root: (root / "extra").symlink_to("/"), "extra: not of the image"),
        (lambda root: (root.parent / "meta.json").write_text("{"), "meta.json"),
    ],
)
def test_check_names_what_is_damaged(store: ImageStore, tmp_path: Path, hurt: Callable[[Path], object], expected: str) -> None:
    record = store.pull("task", f"oci-archive:{a_simple_archive(tmp_path)}")
    assert dict(store.damages()) == {"task": []}

    hurt(store.node.folder / record.digest / "rootfs")

    ((name, wrong),) = store.damages(frozenset({"task"}))
    assert name == "task"
    assert expected in wrong[0]


def test_check_of_a_name_that_is_not_known_says_so(store: ImageStore) -> None:
    assert [(name, "rollstream image pull x" in wrong[0]) for name, wrong in store.damages(frozenset({"x"}))] == [("x", True)]


def test_a_record_that_cannot_be_read_is_told_and_hides_no_other(store: ImageStore, tmp_path: Path) -> None:
    store.pull("task", f"oci-archive:{a_simple_archive(tmp_path)}")
    (store.shared.folder / "names/bad.json").write_text('{"digest": 5}')

    states, problems = store.states()

    assert [state.record.name for state in states] == ["task"]
    assert len(problems) == 1


# ---- budget


def a_store_of_three(tmp_path: Path) -> tuple[ImageStore, list[str]]:
    """Images of 3 MB, the first used longest ago, in a store for ten."""
    store = ImageStore(tmp_path / "shared", tmp_path / "node", ImageSettings(budget_gib=10 / 1024))
    store.node.open()
    digests = []
    for number in range(3):
        layout = a_layout(tmp_path / f"l{number}", a_layer(a_file(f"f{number}", bytes([number]) * 3_000_000)))
        digests.append(store.pull(f"i{number}", f"oci:{layout}", extract=False).digest)
        os.utime(store.node.folder / digests[-1] / "used", (number, number))
    return store, digests


def test_past_the_upper_mark_the_longest_unused_go_down_to_the_lower(tmp_path: Path) -> None:
    """8 MB is the upper mark, 6 the lower: the third image takes it past the one, and one has to go."""
    store, digests = a_store_of_three(tmp_path)

    assert {image.record.digest for image in store.node.images()} == set(digests[1:])


def test_what_is_leased_stays_and_the_next_goes(tmp_path: Path) -> None:
    store, digests = a_store_of_three(tmp_path)
    with store.lease("i1"):
        os.utime(store.node.folder / digests[1] / "used", (0, 0))

        done = store.prune(target_bytes=0)

        assert (done.removed, done.leased) == ((digests[2],), (digests[1],))
    assert store.prune(target_bytes=0).removed == (digests[1],)
    assert leftovers(store) == []


def test_a_lease_makes_an_image_the_last_to_go(tmp_path: Path) -> None:
    store, digests = a_store_of_three(tmp_path)
    store.lease("i1").close()

    assert store.prune(target_bytes=4_000_000).removed == (digests[2],)


def test_an_image_larger_than_the_budget_is_refused(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "shared", tmp_path / "node", ImageSettings(budget_gib=1 / 1024))
    store.node.open()

    with pytest.raises(BadImage, match="unpacked"):
        store.pull("big", f"oci:{a_layout(tmp_path / 'l', a_layer(a_file('f', bytes(2_000_000))))}")
    assert leftovers(store) == []


def test_nothing_but_images_is_touched_in_the_stores_folder(store: ImageStore) -> None:
    (store.node.folder / ".new-precious").mkdir()
    (store.node.folder / "precious").mkdir()

    store.prune(target_bytes=0)

    assert (store.node.folder / ".new-precious").exists()
    assert (store.node.folder / "precious").exists()
