"""Nodes as people read them."""

from __future__ import annotations

from ops.node.reading import NodeView
from ops.node.view import as_text


def a_view(**fields: str) -> NodeView:
    return NodeView(name="gpu7", fields={"state": "up", "boot": "b", "beat": "1000", "lease": "30000", **fields}, now_ms=2000)


def test_a_node_of_workers_shows_its_stages_and_one_of_servers_its_run() -> None:
    workers = "\n".join(as_text(a_view(**{"size.run": "96", "slots.run": "64", "backend": "bubblewrap"})))
    servers = "\n".join(as_text(a_view(serves="swe-7b", servers="http://gpu7:8000 http://gpu7:8001", procs="llm-0:7:up llm-1:8:up")))

    assert "RUN       64 slots take jobs, 96 wanted" in workers
    assert "sandboxes bubblewrap" in workers
    assert "serves    run swe-7b: http://gpu7:8000 http://gpu7:8001" in servers
    assert "process   llm-1 up, pid 8" in servers
    assert "sandboxes" not in servers
    assert "no server yet" in "\n".join(as_text(a_view(serves="swe-7b")))
