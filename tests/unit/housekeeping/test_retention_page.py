"""The page that says who deletes what has every key of `pipeline/keys.py`, and names settings that there are."""

from __future__ import annotations

import re

from ops.housekeeping import HousekeepingSettings
from pipeline import keys
from pipeline.settings import QueueSettings
from tests.e2e.conftest import ROOT
from tests.e2e.documents import cells, first_column, section
from workers.sandbox.images import ImageSettings

PAGE = ROOT / "docs/reference/retention.md"
LISTED = re.compile(r"^    (\S+(?:, \S+)*)\s+(?:hash|zset|set|list|stream|string)\s", re.MULTILINE)


def test_each_key_has_its_line() -> None:
    listed = LISTED.findall(keys.__doc__ or "")

    assert len(listed) > 50
    assert {"meta", "r:<run>", "b:<unit>:prompt", "as:<run>:<url>"} < set(listed)
    assert sorted(first_column(section(PAGE, "Keys of the queue"))) == sorted(listed)


def test_each_line_says_who_when_and_which_setting() -> None:
    known = {*QueueSettings.model_fields, *HousekeepingSettings.model_fields, *ImageSettings.model_fields}
    rows = [row for heading in ("Keys of the queue", "Keys of the housekeeping queue", "Folders") for row in cells(section(PAGE, heading))]

    for row in rows:
        assert len(row) == 5, row
        assert all(row), row
        named = [
            word.rpartition(" ")[2] for word in row[4].split(", ") if word not in ("-", "setting") and not word.startswith("ROLLSTREAM_")
        ]
        assert set(named) <= known | {"[blobs]", "[sandbox]", "dir"}, row
