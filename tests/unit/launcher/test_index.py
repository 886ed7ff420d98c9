"""The launcher finds pip's wheel where pip itself would look."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ops.launcher.package_index import (
    PUBLIC_INDEX,
    IndexFile,
    IndexSettings,
    IndexUnusable,
    accepts,
    config_files,
    fetch,
    list_files,
    newest_wheel,
    read_settings,
    shown,
)

WHEEL = b"the bytes of a wheel"
SHA256 = hashlib.sha256(WHEEL).hexdigest()


class Index:
    """A small package index on loopback: pages and files by path, and what it was asked."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[str, bytes]] = {}
        self.password: str | None = None
        self.moved: dict[str, str] = {}
        self.authorizations: list[str | None] = []
        self.asked: list[str] = []
        self.address = ""

    def url(self, login: str = "") -> str:
        return f"http://{login}{self.address}"


@contextmanager
def serving(index: Index) -> Iterator[Index]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            index.asked.append(self.path)
            index.authorizations.append(self.headers.get("Authorization"))
            wanted = None if index.password is None else "Basic " + base64.b64encode(index.password.encode()).decode()
            if wanted is not None and self.headers.get("Authorization") != wanted:
                self.send_error(401)
            elif self.path in index.moved:
                self.send_response(302)
                self.send_header("Location", index.moved[self.path])
                self.send_header("Content-Length", "0")
                self.end_headers()
            elif self.path in index.pages:
                content_type, body = index.pages[self.path]
                self.send_response(200)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            else:
                self.send_error(404)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
            """Requests are recorded, not printed."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        index.address = f"127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, name="index")
        thread.start()
        try:
            yield index
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")  # a person's proxy does not reach our loopback
    with serving(Index()) as index:
        yield index


def an_html_page(*links: str) -> tuple[str, bytes]:
    return "text/html", ("<!DOCTYPE html><html><body>" + "".join(links) + "</body></html>").encode()


@pytest.mark.parametrize(
    ("requires", "python", "expected"),
    [
        (None, (3, 11, 2), True),
        (">=3.9", (3, 11, 2), True),
        (">=3.12", (3, 11, 9), False),
        (">=3.9,!=3.11.*", (3, 11, 2), False),
        (">=3.9,!=3.10.*", (3, 11, 2), True),
        ("<4,>3.10", (3, 11, 0), True),
        ("~=3.11", (3, 14, 0), True),
        ("~=3.11.4", (3, 12, 0), False),
        ("==3.11.*", (3, 11, 7), True),
        ("<=3.11", (3, 11, 7), False),
        (">=3.9; whatever", (3, 11, 7), False),
    ],
)
def test_a_python_requirement_is_read_as_pip_reads_it(requires: str | None, python: tuple[int, ...], expected: bool) -> None:
    assert accepts(requires, python) is expected


def test_the_newest_final_release_that_this_python_may_run_is_taken() -> None:
    files = [
        IndexFile(name="pip-9.0.1-py2.py3-none-any.whl", url="a"),
        IndexFile(name="pip-26.3-py3-none-any.whl", url="b", requires_python=">=3.9"),
        IndexFile(name="pip-27.0-py3-none-any.whl", url="c", requires_python=">=3.99"),
        IndexFile(name="pip-26.4-py3-none-any.whl", url="d", is_yanked=True),
        IndexFile(name="pip-26.5b1-py3-none-any.whl", url="e"),
        IndexFile(name="pip-26.6.tar.gz", url="f"),
    ]

    chosen = newest_wheel(iter(files), (3, 11, 2))

    assert chosen is not None
    assert chosen.url == "b"


def test_variables_win_over_files_and_later_files_over_earlier_ones(tmp_path: Path) -> None:
    first, second = tmp_path / "first.conf", tmp_path / "second.conf"
    first.write_text("[global]\nindex-url = https://first/simple/\ncert = /first.pem\ntimeout = 5\n")
    second.write_text("[global]\nindex_url = https://second/simple\n[install]\ntrusted-host = a\n  b:8080\n")

    settings = read_settings({"PIP_PROXY": "http://proxy:3128", "PIP_CERT": "/named.pem"}, [first, tmp_path / "none.conf", second])

    assert settings == IndexSettings(
        indexes=("https://second/simple",),
        proxy="http://proxy:3128",
        cert="/named.pem",
        trusted_hosts=frozenset({"a", "b:8080"}),
        timeout_s=5.0,
    )


def test_without_any_configuration_the_public_index_is_asked() -> None:
    assert read_settings({}, []).indexes == (PUBLIC_INDEX,)
    assert read_settings({"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels http://host/list"}, []) == IndexSettings(
        indexes=(), find_links=("/wheels", "http://host/list")
    )


def test_the_configuration_files_are_those_of_pip(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": "/etc/xdg:/opt/xdg", "PIP_CONFIG_FILE": "/named.conf"}

    on_linux = config_files(environ, prefix="/venv", platform="linux")

    assert [str(path) for path in on_linux] == [
        "/etc/xdg/pip/pip.conf",
        "/opt/xdg/pip/pip.conf",
        "/etc/pip.conf",
        f"{tmp_path}/.pip/pip.conf",
        f"{tmp_path}/.config/pip/pip.conf",
        "/venv/pip.conf",
        "/named.conf",
    ]
    assert config_files({**environ, "PIP_CONFIG_FILE": "/dev/null"}) == []


def test_a_configuration_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "pip.conf"
    broken.write_text("index-url = outside of any section\n")

    with pytest.raises(IndexUnusable, match=r"pip\.conf"):
        read_settings({}, [broken])


@pytest.mark.parametrize("form", ["html", "json"])
def test_both_forms_of_the_simple_index_are_understood(index: Index, form: str, tmp_path: Path) -> None:
    name = "pip-26.3-py3-none-any.whl"
    if form == "html":
        page = an_html_page(f'<a href="../files/{name}#sha256={SHA256}" data-requires-python="&gt;=3.9">{name}</a>')
    else:
        entry = {
            "filename": name,
            "url": f"../files/{name}",
            "hashes": {"sha256": SHA256},
            "requires-python": ">=3.9",
            "yanked": False,
        }
        page = "application/vnd.pypi.simple.v1+json", json.dumps({"files": [entry]}).encode()
    index.pages = {"/simple/pip/": page, "/simple/files/" + name: ("application/octet-stream", WHEEL)}
    settings = IndexSettings(indexes=(index.url() + "/simple",))

    [file] = list_files(settings, "pip")
    path = fetch(settings, file, tmp_path)

    assert (file.name, file.sha256, file.requires_python, file.is_yanked) == (name, SHA256, ">=3.9", False)
    assert path.read_bytes() == WHEEL


def test_a_file_with_another_checksum_than_the_index_gave_is_refused(index: Index, tmp_path: Path) -> None:
    index.pages = {"/pip.whl": ("application/octet-stream", b"something else")}

    with pytest.raises(IndexUnusable, match="sha256"):
        fetch(IndexSettings(), IndexFile(name="pip.whl", url=index.url() + "/pip.whl", sha256=SHA256), tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_the_login_in_an_index_address_reaches_its_files_and_nobody_else(index: Index, tmp_path: Path) -> None:
    """A mirror may send a download on to another host. That host must not learn the password."""
    index.password = "user:p@ss"
    name = "pip-26.3-py3-none-any.whl"
    index.pages = {"/simple/pip/": an_html_page(f'<a href="/files/{name}">{name}</a>')}
    with serving(Index()) as elsewhere:
        elsewhere.pages = {f"/{name}": ("application/octet-stream", WHEEL)}
        index.moved = {f"/files/{name}": f"{elsewhere.url()}/{name}"}
        settings = IndexSettings(indexes=(index.url("user:p%40ss@") + "/simple",))

        [file] = list_files(settings, "pip")
        path = fetch(settings, file, tmp_path)

        assert path.read_bytes() == WHEEL
        assert elsewhere.authorizations == [None]
    assert shown(file.url) == f"{index.url()}/files/{name}"


def test_a_folder_of_wheels_serves_without_any_index(tmp_path: Path) -> None:
    (tmp_path / "pip-26.3-py3-none-any.whl").write_bytes(WHEEL)
    (tmp_path / "pip_tools-7.0-py3-none-any.whl").write_bytes(b"")
    settings = IndexSettings(indexes=(), find_links=(str(tmp_path),))

    assert [file.name for file in list_files(settings, "pip")] == ["pip-26.3-py3-none-any.whl"]


def test_a_request_goes_through_the_configured_proxy(index: Index) -> None:
    """A plain request to a proxy carries the whole address: that is what our small server sees and answers."""
    name = "pip-26.3-py3-none-any.whl"
    index.pages = {"http://packages.invalid/simple/pip/": an_html_page(f'<a href="{name}">{name}</a>')}
    settings = IndexSettings(indexes=("http://packages.invalid/simple",), proxy=index.url())

    [file] = list_files(settings, "pip")

    assert file.url == f"http://packages.invalid/simple/pip/{name}"
    assert index.asked == ["http://packages.invalid/simple/pip/"]


def test_every_source_that_has_nothing_is_named_without_its_password(index: Index, tmp_path: Path) -> None:
    settings = IndexSettings(indexes=(index.url("user:secret@"),), find_links=(str(tmp_path),))

    with pytest.raises(IndexUnusable) as caught:
        list(list_files(settings, "pip"))

    assert str(tmp_path) in str(caught.value)
    assert "404" in str(caught.value)
    assert "secret" not in str(caught.value)
