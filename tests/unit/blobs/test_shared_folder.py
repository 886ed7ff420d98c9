"""The shared folder: whole or not at all, checked when read, and no name leads out of it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.blobs import BlobMissing, BlobStoreAway, BlobTooLarge, DamagedBlob, Life, SharedFolder
from pipeline.messages import Blob

JOB = "run1.e0-i0.0.3"
EXPERTS = np.arange(5 * 3 * 2, dtype=np.uint16).reshape(5, 3, 2)


@pytest.fixture
def store(tmp_path: Path) -> SharedFolder:
    return SharedFolder(tmp_path / "blobs", min_free_bytes=0)


def path_of(store: SharedFolder, blob: Blob) -> Path:
    return store.root / "rs" / blob.uri.removeprefix("blob:")


@pytest.mark.parametrize("dtype", ["bool", "uint8", "uint16", "int16", "int64", "float16", "float32", ">u2", "<f8"])
def test_an_array_comes_back_as_it_was_kept_whatever_its_byte_order(store: SharedFolder, dtype: str) -> None:
    array = np.arange(12).reshape(3, 4).astype(dtype)[:, ::-1]

    blob = store.put(Life.new(JOB, 2), "routed_experts", array, part=0)
    found = store.get(blob, JOB)

    assert found.dtype == np.dtype(dtype).newbyteorder("=")
    assert found.shape == (3, 4)
    assert np.array_equal(found, array)
    assert not found.flags.writeable
    assert path_of(store, blob).read_bytes() == array.astype(np.dtype(dtype).newbyteorder("<")).tobytes()


def test_an_empty_array_is_one_too(store: SharedFolder) -> None:
    blob = store.put(Life.new(JOB, 1), "routed_experts", EXPERTS[:0])

    assert store.get(blob, JOB).shape == (0, 3, 2)


@pytest.mark.parametrize(
    "uri",
    [
        "blob:run1/run1.e0-i0.0.3/1-000000000000/../x",
        "blob:run1/../run1.e0-i0.0.3/1-000000000000/x",
        "blob:run1/run1.e0-i0.0.3/1-000000000000//etc/passwd",
        "blob:/etc/passwd",
        "/etc/passwd",
        "file:///etc/passwd",
        "blob:run1/run1.e0-i0.0.3/1-000000000000/x\n",
        "blob:run1/run1.e0-i0.0.3/1-000000000000/.part-000000000000",
        "blob:run1/run1.e0-i0.0.3/1-00000000000/x",
        "blob:run1/run1.e0-i0.0.4/1-000000000000/x",
        "blob:run2/run1.e0-i0.0.3/1-000000000000/x",
        "",
    ],
)
def test_a_name_that_is_not_exactly_one_of_this_job_is_refused(store: SharedFolder, uri: str) -> None:
    blob = store.put(Life.new(JOB, 1), "x", EXPERTS)

    with pytest.raises(DamagedBlob):
        store.get(replace(blob, uri=uri), JOB)


@pytest.mark.parametrize("depth", [0, 1, 2, 3, 4])
def test_a_link_at_any_step_leads_nowhere(store: SharedFolder, tmp_path: Path, depth: int) -> None:
    """Who may write into a shared folder could lay a link to a file of the reader's; its bytes would then be an array somewhere."""
    blob = store.put(Life.new(JOB, 1), "x", EXPERTS)
    path = path_of(store, blob)
    step = [*reversed(path.parents), path][len(store.root.parts) + depth]
    step.rename(tmp_path / "elsewhere")
    step.symlink_to(tmp_path / "elsewhere")
    assert path.read_bytes() == EXPERTS.tobytes(), "the link works for who follows it"

    with pytest.raises((BlobMissing, DamagedBlob)):
        store.get(blob, JOB)


def test_what_is_no_regular_file_is_refused_and_not_waited_for(store: SharedFolder) -> None:
    blob = store.put(Life.new(JOB, 1), "x", EXPERTS)
    path_of(store, blob).unlink()
    os.mkfifo(path_of(store, blob))

    with pytest.raises(DamagedBlob, match="no regular file"):
        store.get(blob, JOB)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"shape": (5, 3, 3)}, "has 90 bytes"),
        ({"dtype": "object"}, "none that is read"),
        ({"dtype": "V60", "shape": (1,)}, "none that is read"),
        ({"shape": (-5, -3, 2)}, "is none"),
        ({"shape": (2**40, 2**40), "n_bytes": 2**81}, "above the bound"),
        ({"shape": (1, 3, 2), "n_bytes": 12}, "expected a file of 12 bytes, found a file of 60"),
        ({"digest": "0" * 64}, "digest"),
    ],
)
def test_a_record_that_does_not_fit_what_is_there_is_refused_before_it_costs_memory(
    store: SharedFolder, change: dict[str, object], why: str
) -> None:
    blob = store.put(Life.new(JOB, 1), "x", EXPERTS)

    with pytest.raises(DamagedBlob, match=why):
        store.get(replace(blob, **change), JOB)  # type: ignore[arg-type]  # fields by name


def test_a_changed_byte_is_found(store: SharedFolder) -> None:
    blob = store.put(Life.new(JOB, 1), "x", EXPERTS)
    content = bytearray(path_of(store, blob).read_bytes())
    content[7] ^= 1
    path_of(store, blob).write_bytes(content)

    with pytest.raises(DamagedBlob, match="digest"):
        store.get(blob, JOB)


def test_objects_are_never_kept(store: SharedFolder) -> None:
    with pytest.raises(TypeError, match="expected an array of"):
        store.put(Life.new(JOB, 1), "x", np.array([{}], dtype=object))


@pytest.mark.parametrize("name", ["", "X", "a/b", "..", "a.b", "a" * 33])
def test_a_file_has_a_plain_name(store: SharedFolder, name: str) -> None:
    with pytest.raises(ValueError, match="lower-case"):
        store.put(Life.new(JOB, 1), name, EXPERTS)


@pytest.mark.parametrize("job", ["", "run1", "../x.y", "run1.a/b", "run1.." + "a", "Run1.x"])
def test_a_life_is_of_a_job(job: str) -> None:
    with pytest.raises(ValueError, match="id of a job"):
        Life.new(job, 1)


def test_what_is_too_large_or_would_fill_the_disk_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(BlobTooLarge, match="59"):
        SharedFolder(tmp_path, max_bytes=59, min_free_bytes=0).put(Life.new(JOB, 1), "x", EXPERTS)
    with pytest.raises(BlobStoreAway, match="min_free_bytes"):
        SharedFolder(tmp_path, min_free_bytes=2**62).put(Life.new(JOB, 1), "x", EXPERTS)

    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(BlobStoreAway, match=r"file.*blobs"):
        SharedFolder(tmp_path / "file", min_free_bytes=0).put(Life.new(JOB, 1), "x", EXPERTS)


def test_two_lives_of_one_attempt_do_not_meet(store: SharedFolder) -> None:
    """Redis lost its last second, and with it the job; submitted again it begins at attempt 1. What is swept of its first life must not be
    of its second, and the second's record must not name the first one's bytes."""
    first, second = Life.new(JOB, 1), Life.new(JOB, 1)
    old, new = store.put(first, "x", EXPERTS), store.put(second, "x", EXPERTS + 1)

    assert store.drop([first]) == 1

    assert np.array_equal(store.get(new, JOB), EXPERTS + 1)
    with pytest.raises(BlobMissing, match="was acked"):
        store.get(old, JOB)


def test_deleting_jobs_takes_all_their_lives_and_the_empty_folders(store: SharedFolder) -> None:
    other = "run1.e0-i1.0.3"
    for job, attempt in ((JOB, 1), (JOB, 4), (other, 1)):
        store.put(Life.new(job, attempt), "x", EXPERTS)
    assert {kept.life.attempt for kept in store.lives() if kept.life.job == JOB} == {1, 4}
    assert store.jobs_of("run1") == {JOB, other}
    assert store.jobs_of("../..") == set()

    assert store.drop_jobs("run1", [JOB, "run1.e9-i9.0.0", "../.."]) == 1
    assert store.jobs_of("run1") == {other}
    assert store.drop_jobs("run1", [other]) == 1

    assert [*store.root.rglob("*")] == [store.root / "rs"]


class DeletedUnderItsHands(SharedFolder):
    """Once, between making the folders and writing into them, all of the job is deleted, and with it the run's empty folder."""

    deletions = 0

    def _write_file(self, folder: int, file: str, content: memoryview) -> None:
        if not self.deletions:
            self.deletions = self.drop_jobs("run1", [JOB])
            assert not (self.root / "rs" / "run1").exists()
        super()._write_file(folder, file, content)


def test_who_writes_makes_again_the_folders_that_others_delete_under_its_hands(tmp_path: Path) -> None:
    """An acked job's folder goes while a worker that was thought dead writes into it; or the run's, empty, while its next job begins."""
    store = DeletedUnderItsHands(tmp_path, min_free_bytes=0)

    blob = store.put(Life.new(JOB, 1), "x", EXPERTS)

    assert store.deletions == 1
    assert np.array_equal(store.get(blob, JOB), EXPERTS)


def test_nothing_unfinished_is_left_or_taken_for_a_blob(store: SharedFolder) -> None:
    blob = store.put(Life.new(JOB, 1), "x", EXPERTS)

    assert [path.name for path in path_of(store, blob).parent.iterdir()] == ["x"]
