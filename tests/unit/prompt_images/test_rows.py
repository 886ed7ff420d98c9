"""Images in rows: the layouts of the field become one form, and nothing but images below the file's folder is read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pipeline.blobs import BadImage
from pipeline.errors import InvalidRequest
from pipeline.prompt_images import MAX_IMAGES, images_in, with_inline_images
from pipeline.prompts import prompt_data
from pipeline.requests import JobRequest
from tests.prompt_image_files import a_jpeg, a_png, as_base64
from workers.handlers.math.layouts import LAYOUTS
from workers.handlers.task_data import BadTaskData, load_rows

PNG, JPEG = a_png(), a_jpeg()
ROW: dict[str, object] = {"question": "How many?", "answer": "4"}
DATA_URL = f"data:image/png;base64,{as_base64(PNG)}"
FORMS: dict[str, dict[str, object]] = {
    "bytes": {"images": [PNG, JPEG]},
    "base64": {"images": [as_base64(PNG), as_base64(JPEG)]},
    "data URLs": {"images": [DATA_URL, f"data:image/jpeg;base64,{as_base64(JPEG)}"]},
    "maps of Hugging Face": {"images": [{"bytes": PNG, "path": None}, {"bytes": JPEG, "path": "b.jpg"}]},
    "one column more": {"images": [PNG], "image": {"bytes": JPEG}},
}


@pytest.mark.parametrize("form", FORMS)
def test_each_way_to_write_images_becomes_base64(form: str) -> None:
    data = prompt_data({**ROW, **FORMS[form]}, field="row")

    assert data == {**ROW, "images": [as_base64(PNG), as_base64(JPEG)]}
    assert images_in(data) == [PNG, JPEG]


def test_parts_of_a_dialogue_become_marks_in_its_text_and_images_in_their_order() -> None:
    parts = [
        {"type": "text", "text": "Compare "},
        {"type": "image_url", "image_url": {"url": DATA_URL}},
        {"type": "text", "text": " with "},
        {"type": "image"},
    ]
    row = {"prompt": [{"role": "system", "content": "Look."}, {"role": "user", "content": parts}], "images": [JPEG]}

    data = prompt_data(row, field="row")

    assert data["prompt"] == [{"role": "system", "content": "Look."}, {"role": "user", "content": "Compare <image> with <image>"}]
    assert images_in(data) == [PNG, JPEG]


def test_rows_without_images_are_not_touched() -> None:
    row = {**ROW, "image": "ubuntu:22.04", "images": None, "prompt": [{"role": "user", "content": "text"}]}

    assert with_inline_images(row) is row


def test_a_request_for_one_job_takes_images_too() -> None:
    assert JobRequest(task="math", prompt={**ROW, "images": [PNG]}).prompt["images"] == [as_base64(PNG)]


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "an address": ({"images": ["https://example.org/a.png"]}, "nothing is fetched"),
    "a path without a file": ({"images": ["a.png"]}, "read of rows in a file only"),
    "no image": ({"images": [as_base64(b"<svg/>")]}, "SVG"),
    "another type": ({"images": [7]}, "got int"),
    "too many": ({"images": [PNG] * (MAX_IMAGES + 1)}, "at most 64 images"),
    "too few for its parts": ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, "has too few"),
    "a video": ({"prompt": [{"role": "user", "content": [{"type": "video"}]}]}, "parts of type text or image"),
    "a data URL of text": ({"images": ["data:image/png,abc"]}, "data URL in base64"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_image_is_refused_when_it_is_fed(case: str) -> None:
    row, told = REFUSED[case]

    with pytest.raises(InvalidRequest, match=told):
        prompt_data(row, field="row")


def test_what_came_over_the_wire_is_judged_again() -> None:
    for images in (["no base64!"], [as_base64(b"text")], [7], [as_base64(PNG)] * (MAX_IMAGES + 1)):
        with pytest.raises(BadImage):
            images_in({"images": images})


def rows_in(folder: Path, *images: object) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(json.dumps({**ROW, "images": [image]}) for image in images))
    return path


def test_paths_in_a_file_of_rows_are_read_below_its_folder(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(PNG)

    rows = load_rows(rows_in(tmp_path, "pictures/a.png", {"path": "pictures/a.png"}), LAYOUTS).rows

    assert [images_in(row) for row in rows] == [[PNG], [PNG]]


@pytest.mark.parametrize("path", ["../secret.png", "/secret.png", "link.png", "pictures/../../secret.png", "linked/secret.png"])
def test_a_path_that_leaves_the_folder_of_the_rows_is_refused(path: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "pictures").mkdir(parents=True)
    (tmp_path / "secret.png").write_bytes(PNG)
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "linked").symlink_to(tmp_path)
    given = str(tmp_path / "secret.png") if path == "/secret.png" else path

    with pytest.raises(BadTaskData, match="below"):
        load_rows(rows_in(folder, given), LAYOUTS)


def test_a_pipe_in_the_place_of_an_image_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")

    with pytest.raises(BadTaskData, match="nothing"):
        load_rows(rows_in(tmp_path, "pipe.png"), LAYOUTS)
