"""The page of an export has its columns, as they are."""

from __future__ import annotations

import pytest

from ops.export import DATASETS
from ops.export.columns import flat
from tests.e2e.conftest import ROOT
from tests.e2e.documents import cells, section


@pytest.mark.parametrize("name", DATASETS)
def test_the_page_lists_each_column_with_its_type_and_meaning(name: str) -> None:
    rows = [tuple(row) for row in cells(section(ROOT / "docs/how-to/export.md", name))]

    assert rows[1:] == [(column.name, column.type, column.says.replace("`", "") or "-") for column in flat(DATASETS[name].columns)]
