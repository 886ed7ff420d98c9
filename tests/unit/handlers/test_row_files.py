"""Files of rows: what is read whatever it is called, and what somebody is told who names a wrong one."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from pathlib import Path

import pytest

from workers.handlers.row_files import BadTaskData, rows_of

ROWS = [{"id": "a", "question": "1+1?"}, {"id": "b", "question": "é"}]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()
PACKED = gzip.compress(LINES)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.jsonl", LINES),
        ("rows.txt", LINES.rstrip()),
        ("bom.jsonl", b"\xef\xbb\xbf" + LINES),
        ("windows.jsonl", LINES.replace(b"\n", b"\r\n")),
        ("gaps.jsonl", b"\n" + LINES.replace(b"\n", b"\n\n")),
        ("rows.jsonl.gz", PACKED),
        ("rows.jsonl", PACKED),
    ],
    ids=["lines", "no end", "BOM", "CRLF", "empty lines", "gz", "gz by another name"],
)
def test_rows_are_read_from(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)

    assert [row for _, row in rows_of(tmp_path / name)] == ROWS


def test_parquet_is_read_whatever_the_file_is_called(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "rows")

    assert [(place.rpartition(", ")[2], row) for place, row in rows_of(tmp_path / "rows")] == [("row 1", ROWS[0]), ("row 2", ROWS[1])]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (json.dumps(ROWS).encode(), r":1: expected an object, found list; jq -c '\.\[\]' makes lines of a list"),
        (json.dumps(ROWS, indent=1).encode(), r":1: no JSON: .* this is JSON over several lines: jq -c"),
        (b"question,answer\n1+1?,2\n", r":1: no JSON: .*; expected a row a line, as JSON \(or Parquet\)$"),
        (LINES + b'{"id": \n', r":3: no JSON: Expecting value at column 7$"),
        (LINES.decode().encode("utf-16"), r":1: no UTF-8: .* at byte 1; write the file in UTF-8"),
        (LINES.decode().encode("latin-1"), r":2: no UTF-8: .* at byte 26; write the file in UTF-8"),
        (bz2.compress(LINES), "packed by bzip2: unpack it first; expected a row a line"),
        (lzma.compress(LINES), "packed by xz: unpack it first"),
        (b"PK\x03\x04 and so on", "packed by zip: unpack it first"),
        (PACKED[:-9], "Compressed file ended before the end-of-stream marker"),
        (PACKED[:20] + b"\0\0\0\0" + PACKED[24:], "Error|invalid|corrupt|CRC"),
    ],
    ids=["list", "pretty", "csv", "cut line", "utf-16", "latin-1", "bzip2", "xz", "zip", "cut gz", "broken gz"],
)
def test_a_wrong_file_is_told_with_what_to_do(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "rows").write_bytes(content)

    with pytest.raises(BadTaskData, match=said):
        list(rows_of(tmp_path / "rows"))


def test_a_file_that_is_not_there_and_a_folder_are_told(tmp_path: Path) -> None:
    with pytest.raises(BadTaskData, match=r"nothing: No such file or directory; expected a row a line"):
        list(rows_of(tmp_path / "nothing"))
    with pytest.raises(BadTaskData, match=r"Is a directory; expected a row a line"):
        list(rows_of(tmp_path))
