"""What `doctor` says of machines that are not as this one is."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ops.doctor.examine import exit_code
from ops.doctor.finding import Finding, Grade, fail, note, ok, warn
from ops.doctor.machine import folders, kernel, limits, network
from pipeline.folders import Folders


def grades(findings: Iterable[Finding]) -> dict[str, Grade]:
    return {finding.check: finding.grade for finding in findings}


def a_kernel(tmp_path: Path, **numbers: str) -> Path:
    files = {
        "user/max_user_namespaces": "15000",
        "kernel/pty/max": "4096",
        "kernel/pty/nr": "3",
        "fs/inotify/max_user_watches": "65536",
    } | {name.replace("__", "/"): value for name, value in numbers.items()}
    for name, value in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(value + "\n")
    return tmp_path


def test_a_kernel_that_is_fit_has_nothing_to_say(tmp_path: Path) -> None:
    assert set(grades(kernel(a_kernel(tmp_path))).values()) == {Grade.OK}


def test_each_limit_of_the_kernel_is_said_with_what_to_do(tmp_path: Path) -> None:
    found = list(kernel(a_kernel(tmp_path, user__max_user_namespaces="0", kernel__pty__nr="4000", fs__inotify__max_user_watches="128")))

    assert grades(found) == {"kernel.user_namespaces": Grade.WARN, "kernel.ptys": Grade.WARN, "kernel.inotify": Grade.WARN}
    assert all("sysctl" in finding.do for finding in found)


def test_where_apparmor_restricts_namespaces_that_is_a_note(tmp_path: Path) -> None:
    found = kernel(a_kernel(tmp_path, kernel__apparmor_restrict_unprivileged_userns="1"))

    assert grades(found)["kernel.user_namespaces"] is Grade.NOTE


def test_few_open_files_and_processes_are_said() -> None:
    assert grades(limits((1024, 524288), (200, 200))) == {"limits.files": Grade.WARN, "limits.processes": Grade.WARN}
    assert grades(limits((-1, -1), (-1, -1))) == {"limits.files": Grade.OK, "limits.processes": Grade.OK}


def test_a_folder_that_cannot_be_used_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    found = list(folders(Folders(run=Path("/" + "x" * 90), data=tmp_path / "file" / "data", scratch=tmp_path, state=tmp_path)))

    assert {finding.check for finding in found if finding.grade is Grade.FAIL} >= {"folders.run", "folders.data"}
    assert all("ROLLSTREAM_" in finding.do for finding in found if finding.grade is Grade.FAIL)


def test_no_password_of_a_proxy_is_shown(tmp_path: Path) -> None:
    found = list(network({"https_proxy": "http://me:hidden@proxy:3128", "SSL_CERT_FILE": str(tmp_path / "none")}))

    assert not any("hidden" in finding.what + finding.do for finding in found)
    assert grades(found)["network.certificates"] is Grade.FAIL


def test_the_exit_code_is_that_of_the_worst_finding() -> None:
    assert exit_code([ok("a", "x"), note("b", "x")]) == 0
    assert exit_code([ok("a", "x"), warn("b", "x", "y")]) == 1
    assert exit_code([warn("a", "x", "y"), fail("b", "x", "y")]) == 2
    assert exit_code([fail("b", "x", "y"), fail("redis", "x", "y")]) == 3
