"""`rollstream image` as a person runs it: exit codes, reports, task files, and the housekeeping queue with a real worker."""

from __future__ import annotations

import base64
import json
import secrets
from pathlib import Path

import pytest
import redis

from ops.housekeeping.queue import IMAGE_JOBS
from ops.images import images_of_tasks
from pipeline.errors import InvalidRequest
from pipeline.testing.servers import PrivateServer
from tests.image_files import a_simple_archive
from tests.integration.images.conftest import Run, leftovers
from workers.sandbox.images import ImageStore


def a_task_file(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_images_of_a_task_file_are_brought_the_failed_are_reported_and_the_next_run_brings_the_rest(
    image: Run, store: ImageStore, tmp_path: Path
) -> None:
    good = f"oci-archive:{a_simple_archive(tmp_path)}"
    late = f"oci-archive:{tmp_path}/late.tar"
    tasks = a_task_file(tmp_path / "tasks.jsonl", {"image": good}, {"docker_image": late}, {"image_name": good}, {"prompt": "none"})

    first = image("pull", "--from", str(tasks), "--json")
    a_simple_archive(tmp_path, b"late").rename(tmp_path / "late.tar")
    second = image("pull", "--from", str(tasks), "--json")

    assert first.returncode == 1
    report = json.loads(first.stdout)
    assert (list(report["pulled"]), list(report["failed"])) == ([good], [late])
    assert "2 images in 4 tasks, 1 without" in first.stderr
    assert second.returncode == 0, second.stderr
    report = json.loads(second.stdout)
    assert (list(report["pulled"]), report["present"]) == ([late], [good])
    assert leftovers(store) == []


def test_a_list_says_what_is_where_and_a_forgotten_name_is_missing(image: Run, store: ImageStore, tmp_path: Path) -> None:
    image("pull", "task", "--source", f"oci-archive:{a_simple_archive(tmp_path)}")

    listed = json.loads(image("list", "--json").stdout)["images"]
    shown = image("list").stdout
    forgotten = image("prune", "--forget", "task", "--to-gib", "0", "--json")

    assert [(one["name"], one["kind"], one["on_node"], one["in_use"], one["has_sif"]) for one in listed] == [
        ("task", "oci", True, False, False)
    ]
    assert "task" in shown
    assert "ready" in shown
    assert json.loads(forgotten.stdout)["forgotten"] == ["task"]
    assert store.node.images() == []
    assert image("prune", "--forget", "task").returncode == 1


def test_check_ends_with_1_when_an_image_is_damaged_and_prune_takes_it_away(image: Run, store: ImageStore, tmp_path: Path) -> None:
    record = store.pull("task", f"oci-archive:{a_simple_archive(tmp_path)}")
    assert image("check").returncode == 0
    (store.node.folder / record.digest / "rootfs/bin/hello").write_bytes(b"evil!")

    checked = image("check", "--json")
    pruned = image("prune", "--damaged", "--json")

    assert (checked.returncode, json.loads(checked.stdout)) == (1, {"task": ["bin/hello: changed"]})
    assert json.loads(pruned.stdout)["removed"] == [record.digest]
    assert image("check", "task").returncode == 0


@pytest.mark.parametrize(
    "words", [("pull",), ("pull", "a", "b", "--source", "sif:x"), ("pull", "--from", "/no/such/file"), ("pull", "ftp://x", "--queue")]
)
def test_wrong_usage_is_said_and_ends_with_2(image: Run, words: tuple[str, ...]) -> None:
    assert image(*words).returncode == 2


# ---- task files


def test_a_field_may_be_named_and_lie_deep(tmp_path: Path) -> None:
    tasks = a_task_file(tmp_path / "t.jsonl", {"sandbox": {"image": "a"}}, {"sandbox": {"image": "b"}, "image": "c"}, {"sandbox": 1}, {})

    found = images_of_tasks(tasks, "sandbox.image")

    assert (found.names, found.rows, found.without) == (("a", "b"), 4, 2)


def test_a_parquet_file_is_read(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "t.parquet"
    table = pyarrow.table({"docker_image": ["a", "b", None, "a"], "problem": ["x" * 1000] * 4, "env": [{"image": "n"}] * 4})
    parquet.write_table(table, path)

    assert images_of_tasks(path).names == ("a", "b")
    assert images_of_tasks(path, "env.image").names == ("n",)
    with pytest.raises(InvalidRequest, match="none of its 4 rows has a text in other"):
        images_of_tasks(path, "other")
    path.write_bytes(b"PAR1 not really")
    with pytest.raises(InvalidRequest, match="cannot be read as Parquet"):
        images_of_tasks(path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{\n", ":1: no JSON"),
        ('{"image": "a"}\n[1]\n', ":2: expected an object"),
        ('{"x": 1}\n', "none of its 1 rows"),
        ("", "none of its 0 rows"),
    ],
)
def test_a_file_that_is_none_of_tasks_says_where(tmp_path: Path, content: str, expected: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(content)

    with pytest.raises(InvalidRequest, match=expected):
        images_of_tasks(path)


# ---- the housekeeping queue


@pytest.fixture
def queue_variables(redis_server: PrivateServer) -> dict[str, str]:
    """The server and a namespace of the test's own."""
    return {"ROLLSTREAM_REDIS_URL": redis_server.url, "ROLLSTREAM_NAMESPACE": "t" + secrets.token_hex(7)}


@pytest.mark.one_server
def test_a_queued_pull_is_done_by_a_worker(
    image: Run, store: ImageStore, tmp_path: Path, queue_variables: dict[str, str], redis_server: PrivateServer
) -> None:
    good, bad = f"oci-archive:{a_simple_archive(tmp_path)}", "oci-archive:/no/such/file"
    namespace = queue_variables["ROLLSTREAM_NAMESPACE"]

    asked = image("pull", good, bad, "--queue", "--json", **queue_variables)
    worked = image("worker", "--burst", **queue_variables)

    assert asked.returncode == 0, asked.stderr
    jobs = json.loads(asked.stdout)["jobs"]
    assert len(jobs) == 2
    assert worked.returncode == 0, worked.stderr
    assert [state.record.name for state in store.states()[0]] == [good]
    with redis.Redis.from_url(redis_server.url) as client:
        assert all(key.startswith(f"{namespace}:hk:".encode()) for key in client.scan_iter(f"*{namespace}*"))
        results = [client.xrevrange(f"{namespace}:hk:results:{job}", count=1)[0][1][b"return_value"] for job in jobs]
        answers = [json.loads(base64.b64decode(result)) for result in results]
        for key in client.scan_iter(f"{namespace}:hk:*"):
            client.delete(key)
    assert [(list(answer["pulled"]), list(answer["failed"])) for answer in answers] == [([good], []), ([], [bad])]


@pytest.mark.one_server
def test_a_worker_runs_nothing_but_what_is_ours(
    image: Run, store: ImageStore, tmp_path: Path, queue_variables: dict[str, str], redis_server: PrivateServer
) -> None:
    """Who can write to the server could name any function: `os.system` with a JSON argument."""
    namespace, proof = queue_variables["ROLLSTREAM_NAMESPACE"], tmp_path / "proof"
    asked = image("prune", "--queue", "--json", **queue_variables)
    (job,) = json.loads(asked.stdout)["jobs"]
    with redis.Redis.from_url(redis_server.url) as client:
        import zlib

        key = f"{namespace}:hk:job:{job}"
        evil: list[object] = ["os.system", None, [f"touch {proof}"], {}]
        client.hset(key, "data", zlib.compress(json.dumps(evil).encode()))

    image("worker", "--burst", **queue_variables)

    assert not proof.exists()
    with redis.Redis.from_url(redis_server.url) as client:
        assert client.hget(f"{namespace}:hk:job:{job}", "status") == b"failed"
        for name in client.scan_iter(f"{namespace}:hk:*"):
            client.delete(name)


def test_each_job_names_a_function_that_is_there() -> None:
    import importlib

    for path in IMAGE_JOBS.values():
        module, _, name = path.rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))
