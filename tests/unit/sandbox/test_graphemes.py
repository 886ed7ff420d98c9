"""Cut text: what a reader takes for one character is there, or it is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.sandbox.capture import HeadTail
from workers.sandbox.graphemes import is_inside_cluster, whole_head, whole_tail

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
WHOLE = ["e\u0301", FAMILY, "\U0001f44d\U0001f3fd", "\u2764\ufe0f", "\U0001f1e9\U0001f1ea", "\u0915\u093f", "\u1112\u1161\u11ab", "\r\n"]


@pytest.mark.parametrize("cluster", WHOLE)
def test_no_cut_inside_a_cluster_leaves_a_part_of_it(cluster: str) -> None:
    for at in range(1, len(cluster)):
        assert is_inside_cluster("a" + cluster[:at], cluster[at:])
        assert whole_head("ab" + cluster[:at], cluster[at:]) == "ab"
        assert whole_tail("a" + cluster[:at], cluster[at:] + "yz") == "yz"


@pytest.mark.parametrize("cluster", [*WHOLE, "x", "\u4e2d", "\U0001f30a"])
def test_a_cut_between_clusters_takes_nothing(cluster: str) -> None:
    assert whole_head(cluster, "a") == cluster
    assert whole_head("a" + cluster, cluster) == "a" + cluster
    assert whole_tail(cluster, cluster) == cluster


def test_flags_are_counted_in_pairs() -> None:
    flags = "\U0001f1e9\U0001f1ea" * 4

    assert whole_head(flags[:5], flags[5:]) == flags[:4]
    assert whole_head(flags[:4], flags[4:]) == flags[:4]
    assert whole_tail(flags[:3], flags[3:]) == flags[4:]


def test_a_tower_of_marks_is_cut_anywhere_rather_than_eat_the_text() -> None:
    tower = "text a" + "\u0301" * 500

    assert whole_head(tower, "\u0301") == tower


@given(st.text(st.sampled_from([*"ab \n", *{c for cluster in WHOLE for c in cluster}]), min_size=1, max_size=60), st.integers(0, 60))
def test_a_cut_takes_at_most_one_cluster_and_leaves_none_open(text: str, at: int) -> None:
    head, tail = text[:at], text[at:]

    kept_head, kept_tail = whole_head(head, tail), whole_tail(head, tail)

    assert head.startswith(kept_head)
    assert tail.endswith(kept_tail)
    assert not is_inside_cluster(kept_head, text[len(kept_head) :])
    assert not is_inside_cluster(text[: len(text) - len(kept_tail)], kept_tail)


@pytest.mark.parametrize("cluster", [FAMILY, "e\u0301", "\U0001f44d\U0001f3fd", "\u20ac"])
@pytest.mark.parametrize("shift", range(20))
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_what_is_kept_of_a_stream_begins_and_ends_with_whole_clusters(cluster: str, shift: int, chunk: int) -> None:
    """The bytes that a cut goes through, and those beside it, come in pieces of any size."""
    kept = HeadTail(200)
    data = b"x" * shift + (cluster * 2000).encode()
    for start in range(0, len(data), chunk):
        kept.feed(data[start : start + chunk])

    head, _, tail = kept.text().partition("\n[...")
    tail = tail.partition("...]\n")[2]

    assert head.lstrip("x").replace(cluster, "") == ""
    assert tail.replace(cluster, "") == ""
    assert len(head.encode()) > 100 - len(cluster.encode())
    assert len(tail.encode()) > 100 - len(cluster.encode())
