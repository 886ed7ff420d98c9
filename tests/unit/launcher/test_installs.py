"""A failed install shows the end of pip's log and says what to do."""

import venv
from pathlib import Path

import pytest

from ops.launcher.installs import InstallFailed, PipState, advice_for, run_pip


@pytest.mark.parametrize(
    ("log", "named"),
    [
        ("ERROR: 407 Proxy Authentication Required", "HTTPS_PROXY"),
        ("Failed to resolve 'index' ([Errno -3] Temporary failure in name resolution)", "PIP_FIND_LINKS"),
        ("Connection to host timed out. (connect timeout=15)", "PIP_INDEX_URL"),
        ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]", "PIP_CERT"),
        ("ERROR: No matching distribution found for redis<9,>=8.1", "wheel for this Python"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk is full"),
        ("ERROR: HTTP error 401 while getting https://index", "refused the login"),
    ],
)
def test_the_advice_fits_what_pip_said(log: str, named: str) -> None:
    assert named in advice_for(log)


def test_a_pip_that_fails_ends_in_its_log_and_advice(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    log = tmp_path / "setup.log"

    with pytest.raises(InstallFailed) as caught:
        run_pip(tmp_path / "env/bin/python", ["install", "something"], log=log, cwd=tmp_path)

    assert "No module named pip" in log.read_text()
    assert "No module named pip" in str(caught.value)
    assert str(log) in str(caught.value)


def test_pip_s_lines_become_one_line_of_progress() -> None:
    state = PipState()
    for line in (
        "Collecting redis<9,>=8.1 (from redis[hiredis]<9,>=8.1->rollstream==0.1.0)\n",
        "  Downloading redis-8.1.0-py3-none-any.whl.metadata (12 kB)\n",
        "  Downloading redis-8.1.0-py3-none-any.whl (400 kB)\n",
        "Processing /wheels/numpy-2.4.6-cp311-cp311-manylinux_2_28_x86_64.whl (from rollstream==0.1.0)\n",
        "Downloading tokenizers-0.23.3-cp39-abi3-manylinux_2_17_x86_64.whl (3.6 MB)\n",
    ):
        state.read(line)

    assert state.text() == "2 packages, 4 MB downloaded: downloading tokenizers-0.23.3-cp39-abi3-manylinux_2_17_x86_64.whl"

    state.read("Installing collected packages: redis, numpy, tokenizers\n")
    assert state.text().endswith("installing 3 packages")
