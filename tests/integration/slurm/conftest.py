"""A cluster of as many nodes as a file asks for (`NODES`), where there are network namespaces."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.bench.nodes_network import NoNamespaces
from tests.integration.slurm.cluster import Cluster


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="rsl-", dir="/tmp") as folder:
        try:
            with Cluster(Path(folder), request.module.NODES) as cluster:
                yield cluster
        except NoNamespaces as why:
            pytest.skip(str(why))
