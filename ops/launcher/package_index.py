"""Finds and fetches one wheel from the package index that pip is configured for, without pip.

Used once, on a Python that came without pip: everything after it is pip's own work. So this reads the settings that decide
where pip would look (configuration files, `PIP_*` variables, proxies, certificates, credentials), speaks both forms of the
simple index (JSON and HTML), and believes no file whose sha256 is not the one the index gave.
"""

import base64
import configparser
import hashlib
import json
import netrc
import os
import re
import ssl
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path

PUBLIC_INDEX = "https://pypi.org/simple"
DEFAULT_TIMEOUT_S = 30.0
"""Of one request: a slow proxy that scans a file first needs more than pip's own 15 s."""
ATTEMPTS = 3
"""A proxy that is waking up or a connection that was cut deserves another try; a third failure is a real one."""
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


class IndexUnusable(Exception):
    """The index could not be reached, or has no wheel that serves; says which was asked and what came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSettings:
    """Where pip would look for packages, and how it would get there."""

    indexes: tuple[str, ...] = (PUBLIC_INDEX,)
    """Roots of simple indexes, asked in order."""
    find_links: tuple[str, ...] = ()
    """Folders or pages that list files, asked before the indexes."""
    proxy: str | None = None
    """Overrides HTTP_PROXY and HTTPS_PROXY, which are honoured anyway."""
    cert: str | None = None
    """File of certificate authorities; None: those of the system, or SSL_CERT_FILE."""
    client_cert: str | None = None
    trusted_hosts: frozenset[str] = frozenset()
    """Hosts (`name` or `name:port`) whose certificate is not checked."""
    timeout_s: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFile:
    """One file that an index lists."""

    name: str
    url: str
    sha256: str | None = None
    requires_python: str | None = None
    is_yanked: bool = False


# --- where to look ----------------------------------------------------------------------------------------------------


def config_files(environ: Mapping[str, str], prefix: str = sys.prefix, platform: str = sys.platform) -> list[Path]:
    """Pip's configuration files, weakest first; they need not exist. `PIP_CONFIG_FILE=/dev/null` means none at all."""
    named = environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    home = Path(environ.get("HOME") or Path.home())
    user_config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    if platform == "darwin":
        support = home / "Library/Application Support/pip"
        shared = [Path("/Library/Application Support/pip/pip.conf")]
        user = support if support.is_dir() else user_config / "pip"
    else:
        shared = [Path(folder) / "pip/pip.conf" for folder in (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")]
        shared.append(Path("/etc/pip.conf"))
        user = user_config / "pip"
    files = [*shared, home / ".pip/pip.conf", user / "pip.conf", Path(prefix) / "pip.conf"]
    return [*files, Path(named)] if named else files


def read_settings(environ: Mapping[str, str], files: Sequence[Path] | None = None) -> IndexSettings:
    """What pip's files and variables say; variables win over files, a later file over an earlier one."""
    values: dict[str, str] = {}
    for path in config_files(environ) if files is None else files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, OSError, UnicodeDecodeError) as error:
            raise IndexUnusable(f"pip's configuration {path} cannot be read: {error}") from error
        for section in ("global", "install"):
            if parser.has_section(section):
                values.update({name.replace("_", "-"): value for name, value in parser.items(section)})
    for name, value in environ.items():
        if name.startswith("PIP_") and value:
            values[name.removeprefix("PIP_").lower().replace("_", "-")] = value
    indexes = [values.get("index-url", PUBLIC_INDEX), *values.get("extra-index-url", "").split()]
    if values.get("no-index", "").lower() in {"1", "true", "yes", "on"}:
        indexes = []
    return IndexSettings(
        indexes=tuple(url.rstrip("/") for url in indexes),
        find_links=tuple(values.get("find-links", "").split()),
        proxy=values.get("proxy"),
        cert=values.get("cert") or environ.get("REQUESTS_CA_BUNDLE") or environ.get("CURL_CA_BUNDLE"),
        client_cert=values.get("client-cert"),
        trusted_hosts=frozenset(values.get("trusted-host", "").split()),
        timeout_s=float(values.get("timeout") or values.get("default-timeout") or DEFAULT_TIMEOUT_S),
    )


def shown(url: str) -> str:
    """An address as it may be printed: without user name and password."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


# --- what is there ----------------------------------------------------------------------------------------------------


def list_files(settings: IndexSettings, project: str) -> Iterator[IndexFile]:
    """Every file of a project, from the first source that has any.

    Raises:
        IndexUnusable: no source answered with a list; each is named with what it said.
    """
    sources = [*settings.find_links, *(f"{root}/{project}/" for root in settings.indexes)]
    said: list[str] = []
    for source in sources:
        try:
            files = [file for file in _list_source(settings, source) if _project_of(file.name) == project]
        except (OSError, ValueError) as error:
            said.append(f"{shown(source)}: {error}")
            continue
        if files:
            yield from files
            return
        said.append(f"{shown(source)}: lists no file of {project}")
    raise IndexUnusable(f"no package source has {project}:\n  " + "\n  ".join(said or ["none is configured (no-index, no find-links)"]))


def _project_of(filename: str) -> str:
    return re.sub(r"[-_.]+", "-", filename.partition("-")[0]).lower()


def _list_source(settings: IndexSettings, source: str) -> list[IndexFile]:
    folder = _local_path(source)
    if folder is not None and folder.is_dir():
        if not (folder / "index.html").is_file():
            return [IndexFile(name=path.name, url=path.as_uri()) for path in sorted(folder.iterdir())]
        source = (folder / "index.html").as_uri()
    elif folder is not None:
        source = folder.absolute().as_uri()
    body, content_type, base = _get(settings, source)
    if "json" in content_type:
        files = [_from_json(entry, base) for entry in json.loads(body)["files"]]
    else:
        page = _Links()
        page.feed(body.decode())
        files = [_from_link(link, base) for link in page.links if link.get("href")]
    return [replace(file, url=_with_login_of(source, file.url)) for file in files]


def _with_login_of(source: str, url: str) -> str:
    """A file on the host of its index needs the login that the index needed; one elsewhere must not see it."""
    login, _, host = urllib.parse.urlsplit(source).netloc.rpartition("@")
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit(parts._replace(netloc=f"{login}@{host}")) if login and parts.netloc == host else url


def _local_path(source: str) -> Path | None:
    parts = urllib.parse.urlsplit(source)
    if parts.scheme == "file":
        return Path(urllib.request.url2pathname(parts.path))
    return None if parts.scheme else Path(source).expanduser()


class _Links(HTMLParser):
    """Collects the attributes of every `<a>`."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.links.append(dict(attrs))


def _from_link(link: Mapping[str, str | None], base: str) -> IndexFile:
    url, fragment = urllib.parse.urldefrag(urllib.parse.urljoin(base, link["href"] or ""))
    algorithm, _, digest = fragment.partition("=")
    return IndexFile(
        name=urllib.parse.unquote(url.rpartition("/")[2]),
        url=url,
        sha256=digest if algorithm == "sha256" else None,
        requires_python=link.get("data-requires-python"),
        is_yanked="data-yanked" in link,
    )


def _from_json(entry: Mapping[str, object], base: str) -> IndexFile:
    hashes, yanked, requires = entry.get("hashes"), entry.get("yanked"), entry.get("requires-python")
    return IndexFile(
        name=str(entry["filename"]),
        url=urllib.parse.urljoin(base, str(entry["url"])),
        sha256=hashes.get("sha256") if isinstance(hashes, dict) else None,
        requires_python=requires if isinstance(requires, str) else None,
        is_yanked=yanked is not None and yanked is not False,
    )


# --- which one serves -------------------------------------------------------------------------------------------------


def newest_wheel(files: Iterator[IndexFile], python: tuple[int, ...]) -> IndexFile | None:
    """The newest final release among pure-Python wheels that this Python may run; yanked ones never."""
    best: tuple[tuple[int, ...], IndexFile] | None = None
    for file in files:
        named = re.fullmatch(r"[^-]+-(\d+(?:\.\d+)*)-(?:py2\.)?py3-none-any\.whl", file.name)
        if not named or file.is_yanked or not accepts(file.requires_python, python):
            continue
        version = tuple(int(part) for part in named[1].split("."))
        if best is None or version > best[0]:
            best = (version, file)
    return best[1] if best else None


def accepts(requires: str | None, python: tuple[int, ...]) -> bool:
    """Whether a `Requires-Python` such as `>=3.9,!=3.12.*` admits this version; one we cannot read does not."""
    return all(_clause_holds(clause.strip(), python) for clause in (requires or "").split(",") if clause.strip())


def _clause_holds(clause: str, python: tuple[int, ...]) -> bool:
    parsed = re.fullmatch(r"(>=|<=|==|!=|~=|>|<)\s*(\d+(?:\.\d+)*)(\.\*)?", clause)
    if not parsed:
        return False
    operator, bound, is_prefix = parsed[1], tuple(int(part) for part in parsed[2].split(".")), parsed[3] is not None
    width = len(bound) if is_prefix else max(len(bound), len(python))
    have = (python + (0,) * width)[:width]
    want = (bound + (0,) * width)[:width]
    match operator:
        case "==":
            return have == want
        case "!=":
            return have != want
        case ">=":
            return have >= want
        case "<=":
            return have <= want
        case ">":
            return have > want
        case "<":
            return have < want
        case _:  # ~=: at least this one, and the same series
            return have >= want and have[: len(bound) - 1] == bound[:-1]


# --- getting it -------------------------------------------------------------------------------------------------------


def fetch(settings: IndexSettings, file: IndexFile, folder: Path) -> Path:
    """Download a file into a folder.

    Raises:
        IndexUnusable: it did not come, or is not the file whose sha256 the index gave; nothing is left in the folder then.
    """
    try:
        body, _, _ = _get(settings, file.url)
    except OSError as error:
        raise IndexUnusable(f"{shown(file.url)}: {error}") from error
    digest = hashlib.sha256(body).hexdigest()
    if file.sha256 is not None and digest != file.sha256:
        raise IndexUnusable(f"{shown(file.url)}: the index says sha256 {file.sha256}, what came has {digest}; a proxy may have changed it")
    path = folder / file.name
    path.write_bytes(body)
    return path


def _get(settings: IndexSettings, url: str) -> tuple[bytes, str, str]:
    """Body, content type and final address of a page or file."""
    parts = urllib.parse.urlsplit(url)
    request = urllib.request.Request(shown(url), headers={"Accept": _ACCEPT, "User-Agent": "rollstream-launch"})
    login = _login(parts)
    if login:  # unredirected: a mirror may send us to another host, which must not learn the password
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
    opener = urllib.request.build_opener(*_handlers(settings, parts))
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with opener.open(request, timeout=settings.timeout_s) as response:
                return response.read(), response.headers.get("Content-Type") or "", response.url
        except urllib.error.HTTPError as error:
            if error.code < 500 or attempt == ATTEMPTS:
                raise
        except OSError:
            if attempt == ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


def _handlers(settings: IndexSettings, parts: urllib.parse.SplitResult) -> list[urllib.request.BaseHandler]:
    context = ssl.create_default_context(cafile=settings.cert)
    if settings.client_cert:
        context.load_cert_chain(settings.client_cert)
    if {parts.hostname or "", parts.netloc.rpartition("@")[2]} & settings.trusted_hosts:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=context)]
    if settings.proxy:
        handlers.append(urllib.request.ProxyHandler({"http": settings.proxy, "https": settings.proxy}))
    return handlers


def _login(parts: urllib.parse.SplitResult) -> str | None:
    """`user:password` for a host: from the address itself, else from the netrc file."""
    if parts.username is not None:
        return f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
    try:
        found = netrc.netrc().authenticators(parts.hostname or "") if parts.hostname else None
    except (OSError, netrc.NetrcParseError):
        return None
    return f"{found[0]}:{found[2]}" if found else None
