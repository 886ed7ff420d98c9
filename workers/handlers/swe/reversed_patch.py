"""A patch the other way round: what it adds it takes away."""

from __future__ import annotations

import re

_RANGES = re.compile(rb"@@ -(\d+(?:,\d+)?) \+(\d+(?:,\d+)?) @@(.*)", re.DOTALL)
_SWAPPED = {
    b"new file mode": b"deleted file mode",
    b"deleted file mode": b"new file mode",
    b"rename from": b"rename to",
    b"rename to": b"rename from",
    b"old mode": b"new mode",
    b"new mode": b"old mode",
}


def reversed_patch(patch: bytes) -> bytes:
    """Of text patches as git writes them. Within a hunk lines keep their places: added ones become removed ones and the other way."""
    reversed_lines: list[bytes] = []
    left = [0, 0]
    was = b""
    for line in patch.split(b"\n"):
        ranges = _RANGES.fullmatch(line)
        if ranges and left == [0, 0]:
            before, after, rest = ranges.groups()
            left = [int(span.split(b",")[1]) if b"," in span else 1 for span in (before, after)]
            reversed_lines.append(b"@@ -%s +%s @@%s" % (after, before, rest))
        elif left != [0, 0]:
            kind = line[:1]
            left[0] -= kind in (b"-", b" ", b"")
            left[1] -= kind in (b"+", b" ", b"")
            reversed_lines.append({b"-": b"+", b"+": b"-"}.get(kind, kind) + line[1:])
        elif line.startswith(b"--- "):
            was = line[4:]
        elif line.startswith(b"+++ "):
            reversed_lines += [b"--- " + _side(line[4:], b"a"), b"+++ " + _side(was, b"b")]
        else:
            word = next((word for word in _SWAPPED if line.startswith(word + b" ")), b"")
            reversed_lines.append(_SWAPPED[word] + line[len(word) :] if word else line)
    return b"\n".join(_in_order(reversed_lines))


def _side(path: bytes, side: bytes) -> bytes:
    return path if path.startswith(b"/dev/null") else side + path[1:]


def _in_order(lines: list[bytes]) -> list[bytes]:
    """`old mode` before `new mode` and `rename from` before `rename to`, as git reads them."""
    ordered = list(lines)
    for index in range(len(ordered) - 1):
        first, second = ordered[index], ordered[index + 1]
        if (first.startswith(b"new mode ") and second.startswith(b"old mode ")) or (
            first.startswith(b"rename to ") and second.startswith(b"rename from ")
        ):
            ordered[index], ordered[index + 1] = second, first
    return ordered
