"""What a guest left on disk goes, whatever it looks like."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from workers.sandbox.local.folder import remove_tree

MANY = 3000
"""Files, so that deleting them takes a while."""


def test_a_folder_far_deeper_than_paths_may_be_goes(tmp_path: Path) -> None:
    """A guest made 4,096 folders in each other: what recursed over them raised RecursionError, and the folder stayed."""
    top = here = tmp_path / "guest"
    top.mkdir()
    descriptor = os.open(here, os.O_RDONLY)
    for _ in range(4096):
        os.mkdir("d", dir_fd=descriptor)
        inner = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(os.open("end", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=descriptor))
    os.close(descriptor)

    remove_tree(top)

    assert list(tmp_path.iterdir()) == []


def test_links_are_not_followed_and_closed_folders_are_opened(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    ours.mkdir()
    (ours / "kept").write_text("x")
    guest = tmp_path / "guest"
    (guest / "closed/inner").mkdir(parents=True)
    (guest / "closed/inner/file").write_text("x")
    (guest / "to_folder").symlink_to(ours)
    (guest / "to_file").symlink_to(ours / "kept")
    (guest / "to_nowhere").symlink_to("nowhere")
    os.mkfifo(guest / "fifo")
    os.link(ours / "kept", guest / "hard")
    for folder in ("closed/inner", "closed", ""):
        (guest / folder).chmod(0)

    remove_tree(guest)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours"]
    assert (ours / "kept").read_text() == "x"
    assert ours.stat().st_mode & 0o777 != 0


def test_what_a_removal_that_was_killed_left_goes_with_the_next(tmp_path: Path) -> None:
    guest = tmp_path / "guest"
    (guest / ".yard-old/0/1").mkdir(parents=True)
    (guest / "more").mkdir()

    remove_tree(guest)
    remove_tree(guest)  # what is not there is removed

    assert list(tmp_path.iterdir()) == []


def test_a_file_that_comes_after_the_look_goes_too(tmp_path: Path) -> None:
    """A rival attempt was still writing into a folder that had just lost its name: it could not be removed, and stayed as trash."""
    folder = tmp_path / "trash"
    folder.mkdir()
    for number in range(MANY):
        (folder / str(number)).touch()
    held = os.open(folder, os.O_RDONLY)

    def write_late() -> None:
        while len(os.listdir(held)) > MANY:  # with the yard: nothing is deleted yet
            pass
        with contextlib.suppress(FileNotFoundError):  # on a very busy machine all was gone before it came
            os.close(os.open("late", os.O_CREAT | os.O_WRONLY, dir_fd=held))

    rival = threading.Thread(target=write_late)
    (folder / "first").touch()
    rival.start()
    remove_tree(folder)
    rival.join()
    os.close(held)

    assert list(tmp_path.iterdir()) == []
