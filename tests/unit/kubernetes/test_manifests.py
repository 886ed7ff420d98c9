"""ops/kubernetes against the schema of Kubernetes, and against the commands, settings and secrets that there are (ADR 35)."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.e2e.conftest import ROOT
from tests.e2e.documents import INLINE
from tests.e2e.test_docs import complaint

VERSIONS = ("1.33", "1.37")
"""The oldest in which what pods need is on without a feature gate, and the newest known."""
FOLDER = ROOT / "ops/kubernetes"
Map = Mapping[str, Any]  # Any: what is read from YAML is looked at as people wrote it
FILES = sorted(FOLDER.glob("*.yaml"))
OBJECTS: list[tuple[str, Map]] = [
    (f"{path.name} {found['kind']}", found) for path in FILES for found in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]
MADE_BY_HAND = {"rollstream-passwords", "rollstream-acl", "rollstream-tokens"}
"""Secrets that the page says how to make."""
PAGE = ROOT / "docs/how-to/kubernetes.md"
END_S = 10.0
"""After its grace a launcher kills what is left (ADR 27)."""


def pods() -> Iterator[tuple[str, Map]]:
    for name, found in OBJECTS:
        if found["kind"] in ("Deployment", "StatefulSet"):
            yield name, found["spec"]["template"]["spec"]


def words_of(container: Map) -> list[str]:
    return [str(word) for word in (*container["command"], *container.get("args", ()))]


PODS = list(pods())
NAMES = [name for name, _ in PODS]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("name", "found"), OBJECTS, ids=[name for name, _ in OBJECTS])
def test_each_manifest_is_what_kubernetes_takes(name: str, found: Map, version: str) -> None:
    kubernetes_validate.validate(found, version, strict=True)


def test_what_kubernetes_does_not_know_is_noticed() -> None:
    """That the test above can fail: a field that is misspelt, and a value of another type."""
    found = dict(OBJECTS)["node.yaml Deployment"]
    for change in ({"terminationGracePeriod": 1}, {"hostUsers": "no"}):
        wrong: Any = copy.deepcopy(dict(found))
        wrong["spec"]["template"]["spec"].update(change)
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


@pytest.mark.parametrize(("name", "pod"), PODS, ids=NAMES)
def test_each_command_is_one_of_ours(name: str, pod: Map) -> None:
    (container,) = pod["containers"]
    match words_of(container):
        case ["/opt/rollstream/ops/launch", "node", *rest]:
            said = complaint(["node", "run", *rest])
        case ["/opt/rollstream/.venv/bin/rollstream", *rest]:
            said = complaint(rest)
        case ["valkey-server", *_]:
            said = ""
        case other:
            said = f"{other[0]} is not known here"
    assert said == "", name


@pytest.mark.parametrize(("name", "pod"), PODS, ids=NAMES)
def test_each_setting_is_documented_and_no_secret_stands_in_one(name: str, pod: Map) -> None:
    page = (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8")
    tables = {
        table: set(INLINE.findall(text)) for table, text in re.findall(r"Table `\[(\w+)\]`(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    }
    (container,) = pod["containers"]
    for variable in container.get("env", ()):
        setting = variable["name"].removeprefix("ROLLSTREAM_")
        table, _, field = setting.lower().partition("_")
        known = f"`{variable['name']}`" in page or field in tables.get(table, ()) or setting.lower() in tables["queue"]
        assert known or variable["name"] == "HOME", variable["name"]
        assert not re.search(r"(PASSWORD|TOKEN|KEY)\Z", variable["name"]), variable["name"]


@pytest.mark.parametrize(("name", "pod"), PODS, ids=NAMES)
def test_files_that_are_named_are_mounted_from_secrets_that_there_are(name: str, pod: Map) -> None:
    """One password a process: that of its user."""
    (container,) = pod["containers"]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    templates = next((found["spec"].get("volumeClaimTemplates", ()) for at, found in OBJECTS if at == name), ())
    volumes = {each["name"]: each for each in (*pod["volumes"], *({"name": each["metadata"]["name"]} for each in templates))}
    assert set(mounts) == set(volumes)
    files = set()
    for volume, folder in mounts.items():
        if "secret" in volumes[volume]:
            secret = volumes[volume]["secret"]
            assert secret["secretName"] in MADE_BY_HAND
            assert secret["defaultMode"] == 0o440
            files |= {f"{folder}/{item['path']}" for item in secret.get("items", [{"path": "users.acl"}])}
    said = [*words_of(container), *(str(each["value"]) for each in container.get("env", ()))]
    named = {word for word in said if word.startswith(("/passwords/", "/tokens/", "/acl/"))}
    assert named <= files
    users = {each["value"] for each in container.get("env", ()) if each["name"] == "ROLLSTREAM_REDIS_USER"}
    assert {f"/passwords/{user}.password" for user in users} == {word for word in named if word.startswith("/passwords/")}


@pytest.mark.parametrize(("name", "pod"), PODS, ids=NAMES)
def test_a_pod_has_the_time_that_its_drain_takes(name: str, pod: Map) -> None:
    (container,) = pod["containers"]
    words = words_of(container)
    grace_s = float(words[words.index("--grace-s") + 1]) if "--grace-s" in words else 0.0

    assert pod["terminationGracePeriodSeconds"] >= grace_s + END_S


@pytest.mark.parametrize(("name", "pod"), PODS, ids=NAMES)
def test_nobody_is_root_and_only_nodes_may_more_than_the_restricted_standard(name: str, pod: Map) -> None:
    (container,) = pod["containers"]
    own, common = container["securityContext"], pod["securityContext"]
    assert common["runAsNonRoot"] is True
    assert own["allowPrivilegeEscalation"] is False
    assert own["capabilities"] == {"drop": ["ALL"]}
    profile = own.get("seccompProfile") or common["seccompProfile"]
    makes_sandboxes = container["name"] == "node"
    assert profile == {"type": "Unconfined" if makes_sandboxes else "RuntimeDefault"}
    assert (own.get("procMount") == "Unmasked") == (pod.get("hostUsers") is False) == makes_sandboxes


@pytest.mark.parametrize(("name", "found"), OBJECTS, ids=[name for name, _ in OBJECTS])
def test_ports_and_names_that_are_asked_for_are_there(name: str, found: Map) -> None:
    labels = {at: each["spec"]["template"] for at, each in OBJECTS if "template" in each.get("spec", {})}
    if found["kind"] == "Service":
        (template,) = [each for each in labels.values() if each["metadata"]["labels"] == found["spec"]["selector"]]
        ports = {port["name"] for port in template["spec"]["containers"][0]["ports"]}
        assert {port.get("targetPort", port["name"]) for port in found["spec"]["ports"]} <= ports
    elif found["kind"] == "ConfigMap":
        host = re.match(r"redis://([\w-]+):6379/0\Z", found["data"]["ROLLSTREAM_REDIS_URL"])
        assert host is not None
        assert host[1] in {each["metadata"]["name"] for _, each in OBJECTS if each["kind"] == "Service"}
    else:
        assert found["spec"]["selector"]["matchLabels"] == found["spec"]["template"]["metadata"]["labels"]


def test_the_page_names_each_file_and_secret() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert [path.name for path in FILES if f"ops/kubernetes/{path.name}" not in page] == []
    assert [name for name in sorted(MADE_BY_HAND) if f"create secret generic {name}" not in page] == []


def redis_words() -> Sequence[str]:
    return words_of(dict(PODS)["redis.yaml StatefulSet"]["containers"][0])


def test_redis_keeps_what_it_is_told_and_evicts_nothing() -> None:
    words = redis_words()
    said = dict(zip(words[1::2], words[2::2], strict=True))

    assert (said["--appendonly"], said["--maxmemory-policy"]) == ("yes", "noeviction")
