"""Images with the real programs: scripts of builds in sandboxes of each backend, SIF files that Apptainer writes and reads."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
from pathlib import Path

import pytest

from tests.image_files import a_file, a_layer, a_layout, an_archive
from tests.integration.images.conftest import command_on, leftovers
from tests.integration.sandbox_images.conftest import REQUIRED
from workers.sandbox import ImageMissing, SandboxOwner, SandboxSpec
from workers.sandbox.choice import choose_backend
from workers.sandbox.images import ImageSettings, ImageStore
from workers.sandbox.local import LocalSandboxes

pytestmark = pytest.mark.skipif(os.geteuid() == 0, reason="sandboxes with walls refuse root")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("backend", ["bubblewrap", "apptainer"])
def test_a_script_changes_what_a_sandbox_of_its_base_shows_and_nothing_of_the_base(
    based: ImageStore, tmp_path: Path, short: Path, backend: str
) -> None:
    choice = asyncio.run(choose_backend(backend, scratch_dir=tmp_path / "scratch", run_dir=short))
    if choice.backend is None:
        (pytest.fail if backend in REQUIRED else pytest.skip)(choice.why_none())
    replaced = "rm -r /usr/share/doc; mkdir /usr/share/doc; echo 1 > /usr/share/doc/new; mv /etc/skel /etc/skeleton"
    script = (
        f"echo built > /etc/built; chmod 600 /etc/built; rm /etc/debian_version; {replaced}; echo $A; id -un; test ! -e /proc/1/root/work"
    )
    (tmp_path / "t.toml").write_text(f'name = "{backend}"\nbase = "base"\nenv = {{ A = "said" }}\n[version]\nrun = "{script}"\n')

    settings = {"ROLLSTREAM_IMAGE_BUDGET_GIB": "20", "ROLLSTREAM_SANDBOX_BACKEND": backend, "ROLLSTREAM_SANDBOX_RUN_DIR": str(short)}
    done = command_on(based)("build", str(tmp_path / "t.toml"), "--refresh", **settings)

    assert done.returncode == 0, done.stderr
    assert list(short.iterdir()) == [], "each script left a folder there once"
    assert "said" in done.stderr
    assert "agent" in done.stderr
    with based.lease(backend) as lease, based.lease("base") as base:
        users = [(base.root / "etc" / name).read_text() for name in ("passwd", "group")]
        assert (lease.root / "etc/built").read_text() == "built\n"
        assert stat.S_IMODE((lease.root / "etc/built").stat().st_mode) == 0o600
        assert not (lease.root / "etc/debian_version").exists()
        assert [(lease.root / "etc" / name).read_text() for name in ("passwd", "group")] == users  # those of the base, not who built it
        assert (base.root / "etc/debian_version").exists()
        assert [path.name for path in (lease.root / "usr/share/doc").iterdir()] == ["new"]
        assert (base.root / "usr/share/doc/base-files").is_dir()
        assert not (lease.root / "etc/skel").exists()
        assert sorted(os.listdir(lease.root / "etc/skeleton")) == sorted(os.listdir(base.root / "etc/skel"))
        assert stat.S_IMODE((lease.root / "tmp").stat().st_mode) == stat.S_IMODE((base.root / "tmp").stat().st_mode)
    assert [wrong for _, wrong in based.damages() if wrong] == []
    assert leftovers(based) == []


@pytest.mark.timeout(120)
def test_a_script_that_fails_is_told_with_what_it_printed(based: ImageStore, tmp_path: Path, short: Path) -> None:
    choice = asyncio.run(choose_backend("auto", scratch_dir=tmp_path / "scratch", run_dir=short))
    if choice.backend is None:
        pytest.skip(choice.why_none())
    (tmp_path / "t.toml").write_text('base = "base"\n[version]\nrun = "echo before; false; echo after"\n')

    done = command_on(based)("build", str(tmp_path / "t.toml"), ROLLSTREAM_IMAGE_BUDGET_GIB="20")

    assert done.returncode == 1
    assert "the script ended with 1: before" in done.stderr
    assert "after" not in done.stderr
    assert leftovers(based) == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("backend", ["bubblewrap", "apptainer"])
async def test_a_sandbox_has_its_image_for_as_long_as_it_lives_and_a_missing_one_fetches_nothing(
    based: ImageStore, tmp_path: Path, system: Path, short: Path, backend: str
) -> None:
    choice = await choose_backend(backend, scratch_dir=tmp_path / "scratch", run_dir=short)
    if choice.backend is None:
        (pytest.fail if backend in REQUIRED else pytest.skip)(choice.why_none())
    record = based.shared.find("base")
    assert record is not None
    owner = SandboxOwner(job_id="r.p.0.0", attempt=1, boot_id="b")

    async with LocalSandboxes(choice.backend, scratch_dir=tmp_path / "scratch", run_dir=short, node="n", images=based) as sandboxes:
        with pytest.raises(ImageMissing, match="rollstream image pull other"):
            await sandboxes.start(SandboxSpec(image="other"), owner)
        async with await sandboxes.start(SandboxSpec(image="base"), owner) as sandbox:
            shown = await sandbox.exec("cat /etc/debian_version; echo mine > /etc/debian_version", timeout_s=20)
            assert not based.node.remove(record.digest)
        assert shown.stdout_text == (system / "etc/debian_version").read_text()

    assert based.node.damage(record.digest) == []
    assert [image.is_leased for image in based.node.images() if image.record.digest == record.digest] == [False]


def a_small_tree(folder: Path) -> Path:
    tree = folder / "tree"
    (tree / "bin").mkdir(parents=True)
    (tree / "bin/hello").write_text("hi")
    return tree


def test_a_sif_that_apptainer_wrote_is_unpacked(store: ImageStore, tmp_path: Path, apptainer: str) -> None:
    sif = tmp_path / "x.sif"
    subprocess.run([apptainer, "build", sif, a_small_tree(tmp_path)], check=True, capture_output=True, timeout=50)

    store.pull("task", f"sif:{sif}")

    with store.lease("task") as lease:
        assert (lease.root / "bin/hello").read_text() == "hi"
    assert leftovers(store) == []


def test_an_image_is_packed_for_other_nodes_and_is_the_same_there(store: ImageStore, tmp_path: Path, apptainer: str) -> None:
    tree = a_small_tree(tmp_path)
    record = store.pull("task", f"folder:{tree}", share=True)
    (tree / "bin/hello").write_text("changed since")
    other = ImageStore(store.shared.folder, tmp_path / "other")
    other.node.open()

    with other.lease("task") as lease:
        assert (lease.root / "bin/hello").read_text() == "hi"
        assert lease.digest == record.digest
    assert leftovers(store) == []


@pytest.mark.parametrize("form", ["oci-archive", "oci"])
def test_apptainer_pulls_what_a_registry_would_have(tmp_path: Path, apptainer: str, form: str) -> None:
    """No registry can be reached here: the same command line, with a layout in the registry's place."""
    layout = a_layout(
        tmp_path / "l", a_layer(a_file("bin/hello", b"hi", 0o755)), env=["PATH=/opt/bin", 'Q=a "b" $c `d` \\e', "N=x\ny"], name="latest"
    )
    source = f"oci:{layout}" if form == "oci" else f"oci-archive:{an_archive(tmp_path / 'a.tar', layout)}"
    store = ImageStore(tmp_path / "shared", tmp_path / "node", ImageSettings(apptainer=apptainer))
    store.node.open()
    file = tmp_path / "pulled.sif"

    store.apptainer.pull("x", source, file, 50)
    store.pull("x", f"sif:{file}")

    with store.lease("x") as lease:
        assert (lease.root / "bin/hello").read_text() == "hi"
        assert dict(lease.env) == {"PATH": "/opt/bin", "Q": 'a "b" $c `d` \\e', "N": "x\ny"}
    assert leftovers(store) == []
