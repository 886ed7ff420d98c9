"""The name of a sandbox's user: added above an image that does not know the uid, never in it, and taken back from what becomes an image."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workers.sandbox.local.user_name import ABOUT, give_name, take_name_back

ROOT_ONLY = "root:x:0:0:root:/root:/bin/bash\n"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    (tmp_path / "image/etc").mkdir(parents=True)
    (tmp_path / "image/etc/passwd").write_text(ROOT_ONLY.replace("x:0:0", "x:9991:9992"))
    (tmp_path / "image/etc/group").write_text("root:x:9992:\n")
    return tmp_path / "image"


@pytest.fixture
def upper(tmp_path: Path) -> Path:
    (tmp_path / "upper").mkdir()
    return tmp_path / "upper"


def ours(name: str = "agent", home: str = "/workspace") -> str:
    return f"{name}:x:{os.getuid()}:{os.getgid()}:{ABOUT}:{home}:/bin/bash\n"


def everything(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_text() if path.is_file() else "folder"
        for path in folder.rglob("*")
    }


def test_a_uid_that_the_image_does_not_know_gets_a_line_above_it(image: Path, upper: Path) -> None:
    before = everything(image)
    (image / "etc").chmod(0o750)

    give_name(image, upper, "/deep/in")

    assert (upper / "etc/passwd").read_text() == before["etc/passwd"] + ours(home="/deep/in")
    assert (upper / "etc/group").read_text() == before["etc/group"] + f"agent:x:{os.getgid()}:\n"
    assert [path.stat().st_mode & 0o777 for path in (upper / "etc", upper / "etc/passwd")] == [0o750, 0o644]
    assert everything(image) == before


def test_a_user_whom_the_image_knows_keeps_his_name(image: Path, upper: Path) -> None:
    (image / "etc/passwd").write_text(f"node:x:{os.getuid()}:1:Node:/home/node:/bin/sh\n")
    (image / "etc/group").write_text(f"node:x:{os.getgid()}:\n")

    give_name(image, upper, "/workspace")

    assert everything(upper) == {}


def test_another_user_of_that_name_is_not_taken_for_ours(image: Path, upper: Path) -> None:
    (image / "etc/passwd").write_text("agent:x:9990:9990::/:/bin/sh")  # no end of line either

    give_name(image, upper, "/workspace")

    assert (upper / "etc/passwd").read_text().splitlines(keepends=True)[1:] == [ours(f"agent{os.getuid()}")]


def test_an_image_without_users_gets_one(tmp_path: Path, upper: Path) -> None:
    (tmp_path / "bare").mkdir()

    give_name(tmp_path / "bare", upper, "/work:space")

    assert everything(upper) == {"etc": "folder", "etc/passwd": ours(home="/"), "etc/group": f"agent:x:{os.getgid()}:\n"}


@pytest.mark.parametrize("link", ["/usr/lib/users", "../usr/lib/users", "../../../usr/lib/users"])
def test_links_mean_what_they_mean_inside(image: Path, upper: Path, link: str) -> None:
    """Followed as from outside, an absolute one would show the sandbox the users of this node."""
    (image / "usr/lib").mkdir(parents=True)
    (image / "etc/passwd").rename(image / "usr/lib/users")
    (image / "etc/passwd").symlink_to(link)

    give_name(image, upper, "/workspace")

    assert (upper / "usr/lib/users").read_text().endswith(ours())
    assert "9991" in (upper / "usr/lib/users").read_text()
    assert not (upper / "etc/passwd").exists()


@pytest.mark.parametrize("odd", ["pipe", "loop"])
def test_what_is_no_plain_file_is_left_alone(image: Path, upper: Path, odd: str) -> None:
    (image / "etc/passwd").unlink()
    if odd == "pipe":
        os.mkfifo(image / "etc/passwd")  # to open it would wait for ever
    else:
        (image / "etc/passwd").symlink_to("passwd")

    give_name(image, upper, "/workspace")

    assert sorted(everything(upper)) == ["etc", "etc/group"]


def test_what_becomes_an_image_has_no_line_of_ours(image: Path, upper: Path) -> None:
    """It may run elsewhere, as another user, whose uid is then known by nobody's name."""
    give_name(image, upper, "/workspace")

    take_name_back(image, upper)

    assert everything(upper) == {"etc": "folder"}


def test_what_a_build_wrote_to_them_itself_stays(image: Path, upper: Path) -> None:
    give_name(image, upper, "/workspace")
    with open(upper / "etc/passwd", "a", encoding="ascii") as file:
        file.write("db:x:77:77::/:/bin/false\n")
    (upper / "etc/group").unlink()

    take_name_back(image, upper)

    assert (upper / "etc/passwd").read_text() == (image / "etc/passwd").read_text() + "db:x:77:77::/:/bin/false\n"
    assert not (upper / "etc/group").exists()


def test_a_link_that_a_build_left_does_not_lead_out(image: Path, upper: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/passwd").write_text(ours())
    (upper / "etc").symlink_to(tmp_path / "elsewhere")

    take_name_back(image, upper)

    assert (tmp_path / "elsewhere/passwd").read_text() == ours()
