"""Many at one image: one makes it and the others wait, a lease holds against any removal, and other nodes rename what is being read."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.image_files import a_file, a_layer, a_layout, a_sif, a_simple_archive
from tests.integration.images.conftest import Run, leftovers
from workers.sandbox.errors import ImageError
from workers.sandbox.images import ImageStore
from workers.sandbox.images.records import Contents
from workers.sandbox.images.tree_writer import Written

DIGEST = "d" * 64


def another(store: ImageStore) -> ImageStore:
    """The same store as another process sees it: locks belong to open files."""
    return ImageStore(store.shared.folder, store.node.folder, store.settings)


def test_of_two_that_want_an_image_one_makes_it_and_the_other_waits_and_says_so(store: ImageStore) -> None:
    is_made, is_waited_for = threading.Event(), threading.Event()
    said: list[str] = []

    def fill_slowly(root: Path) -> tuple[Contents, Written]:
        (root / "by").write_text("first")
        is_made.set()
        assert is_waited_for.wait(20)
        return Contents(), Written()

    def fill_never(root: Path) -> tuple[Contents, Written]:
        raise AssertionError("made twice")

    def hear(words: str) -> None:
        said.append(words)
        is_waited_for.set()

    with ThreadPoolExecutor() as threads:
        first = threads.submit(store.make, "x", DIGEST, "build", "", fill_slowly)
        assert is_made.wait(20)
        second = threads.submit(another(store).make, "x", DIGEST, "build", "", fill_never, hear)

        assert first.result(20) == second.result(20)
    assert said[0].startswith(f"waits for process {os.getpid()} on ")
    assert leftovers(store) == []


def test_when_the_one_that_makes_it_fails_the_other_makes_it(store: ImageStore) -> None:
    """The lock file is removed by the one that fails: the waiting one holds a file without a name, and must take the lock anew."""
    is_made, is_waited_for = threading.Event(), threading.Event()

    def fill_badly(root: Path) -> tuple[Contents, Written]:
        is_made.set()
        assert is_waited_for.wait(20)
        raise RuntimeError("on purpose")

    def fill_well(root: Path) -> tuple[Contents, Written]:
        assert list(root.iterdir()) == []
        (root / "by").write_text("second")
        return Contents(), Written()

    with ThreadPoolExecutor() as threads:
        first = threads.submit(store.make, "x", DIGEST, "build", "", fill_badly)
        assert is_made.wait(20)
        second = threads.submit(another(store).make, "x", DIGEST, "build", "", fill_well, lambda _: is_waited_for.set())

        with pytest.raises(RuntimeError, match="on purpose"):
            first.result(20)
        assert second.result(20).entries == 1
    assert leftovers(store) == []


def test_processes_that_pull_one_image_at_once_all_have_it(image: Run, store: ImageStore, tmp_path: Path) -> None:
    archive = a_simple_archive(tmp_path, b"x" * 500_000, layers=20)

    with ThreadPoolExecutor() as threads:
        done = [threads.submit(image, "pull", "task", "--source", f"oci-archive:{archive}") for _ in range(3)]

    assert [one.result().returncode for one in done] == [0, 0, 0], [one.result().stderr for one in done]
    assert len(store.node.images()) == 1
    assert dict(store.damages()) == {"task": []}
    assert leftovers(store) == []


def test_a_leased_image_is_whole_however_often_others_remove_and_make_it(store: ImageStore, tmp_path: Path) -> None:
    """The race: a lease opens the lock file, the folder is renamed away, the lock is granted on a file without a name."""
    layout = a_layout(tmp_path / "l", *(a_layer(a_file(f"f{i}", b"x")) for i in range(5)))
    digest = store.pull("task", f"oci:{layout}").digest
    stop, removed = threading.Event(), [0]

    def remove() -> None:
        mine = another(store)
        while not stop.is_set() and removed[0] < 50:
            removed[0] += mine.node.find(digest) is not None and mine.node.remove(digest)

    def use() -> int:
        mine, missing = another(store), 0
        while not stop.is_set() and removed[0] < 50:
            try:
                lease = mine.lease("task")
            except ImageError as error:  # the remover was quicker each time, which is said
                if "times between its extraction and its use" not in str(error):
                    raise
                continue
            with lease:
                missing += len(os.listdir(lease.root)) != 5
                missing += (lease.root / "f4").read_bytes() != b"x"
        return missing

    with ThreadPoolExecutor() as threads:
        remover = threads.submit(remove)
        users = [threads.submit(use) for _ in range(2)]
        try:
            assert [user.result(50) for user in users] == [0, 0]
            remover.result(20)
        finally:
            stop.set()
    assert removed == [50]
    store.prune()
    assert leftovers(store) == []


def test_a_shared_store_is_read_while_another_node_renames_in_it(store: ImageStore, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "hello").write_text("hi")
    source = f"sif:{a_sif(tmp_path / 'x.sif', tree)}"
    digest = store.pull("task", source, extract=False).digest
    stop = threading.Event()

    def bring() -> int:
        other, times = ImageStore(store.shared.folder, tmp_path / "other"), 0
        while not stop.is_set():
            other.pull("task", source, extract=False)
            times += 1
        return times

    with ThreadPoolExecutor() as threads:
        node = threads.submit(bring)
        try:
            for _ in range(15):
                with store.lease("task") as lease:
                    assert (lease.root / "hello").read_text() == "hi"
                store.node.remove(digest)
        finally:
            stop.set()
        assert node.result(20) > 3
    assert leftovers(store) == []


def test_what_other_nodes_left_half_written_goes_after_a_day_and_what_is_named_never(store: ImageStore, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "hello").write_text("1")
    old = store.pull("task", f"sif:{a_sif(tmp_path / 'x.sif', tree)}", extract=False).sif
    (tree / "hello").write_text("2")
    new = store.pull("task", f"sif:{a_sif(tmp_path / 'y.sif', tree)}", extract=False).sif
    half = store.shared.folder / "sif/.new-0123456789ab.sif"
    half.write_text("half")

    store.prune()
    assert half.exists()
    assert store.shared.has_sif(old)
    for path in (half, store.shared.sif(old), store.shared.sif(new)):
        os.utime(path, (0, 0))
    assert store.prune().swept == 2

    assert not half.exists()
    assert [digest for digest, _ in store.shared.sifs()] == [new]


def test_a_lease_does_not_wait_for_an_image_that_others_only_look_at(store: ImageStore, tmp_path: Path) -> None:
    store.pull("task", f"oci-archive:{a_simple_archive(tmp_path)}")

    with store.lease("task"), another(store).lease("task"):
        assert [image.is_leased for image in store.node.images()] == [True]
    assert [image.is_leased for image in store.node.images()] == [False]


# ---- full disks


def test_a_full_disk_is_told_and_nothing_half_made_is_left(image: Run, store: ImageStore, tmp_path: Path) -> None:
    """In a mount namespace of its own, where the store is a file system of one megabyte."""
    archive = a_simple_archive(tmp_path, os.urandom(3_000_000))
    script = (
        f'mount -t tmpfs -o size=1m,mode=700 none "{store.node.folder}" && "$@"; code=$?; '
        f'ls -A "{store.node.folder}" >&2; du -s "{store.node.folder}" >&2; exit $code'
    )

    done = image("pull", "task", "--source", f"oci-archive:{archive}", program=("unshare", "-rm", "sh", "-c", script, "sh"))

    if "Operation not permitted" in done.stderr and "unshare" in done.stderr:
        pytest.skip("no user namespaces here")
    assert done.returncode == 1, done.stderr
    assert "the disk is full" in done.stderr
    *_, listed, used = done.stderr.strip().splitlines()
    assert listed == ".locks"
    assert int(used.split()[0]) < 100
    assert store.shared.find("task") is None
