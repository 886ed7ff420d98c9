"""`bench dapo` measures what it says, seen on a small one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.bench.dapo_arms import Arm
from ops.bench.dapo_bench import arms, off_uncancelled, run_arms, table_of, time_ratio
from ops.bench.dapo_mix import BLOCK, GROUPS_A_DEAL, KINDS, LONGEST_5, MEMBERS, TRUE_MEAN, Dealer, Mix
from ops.bench.dapo_task import units_between
from pipeline.testing.servers import PrivateServer, ServerKind


def quiet(line: str) -> None:
    """Takes what a benchmark tells meanwhile."""


@pytest.mark.slow
@pytest.mark.one_server
@pytest.mark.timeout(120)
async def test_both_train_on_whole_steps_and_every_token_is_counted(server_kind: ServerKind) -> None:
    asked = [
        Arm(how="ours", half_slow=False, slots=32, steps=3),
        Arm(how="batch", half_slow=False, slots=32, steps=2),
    ]
    with PrivateServer(server_kind) as server:
        found = await run_arms(server.url, asked, 6.0, quiet)

    ours, batches = found
    for trained in found:
        assert len(trained.slow) == 8 * trained.arm.steps
        assert len(trained.lengths) == 8 * MEMBERS * trained.arm.steps
        assert trained.units > 0
        assert 0 < trained.busy < 1
    # a batch samples all that it accepts, and whatever is filtered beside it
    assert batches.units > sum(batches.lengths)
    assert 0 < time_ratio(ours, found) < 1
    assert all(abs(off) < 1 for off in off_uncancelled(ours, found))
    assert any("supervisor, over 1.5" in line for line in table_of(found))


def test_everybody_has_its_own_run_and_every_setting_its_contenders() -> None:
    asked = arms()

    assert len({arm.name for arm in asked}) == len(asked)
    for arm in (arm for arm in asked if arm.how == "ours"):
        against = [other for other in asked if (other.how, other.half_slow, other.slots) == ("batch", arm.half_slow, arm.slots)]
        assert sorted(other.batch for other in against) == [8, 24]


def test_sampling_is_counted_by_the_share_that_falls_into_the_stretch(tmp_path: Path) -> None:
    account = tmp_path / "account"
    account.write_text("0.0 10.0 5.0\n8.0 12.0 4.0\n20.0 21.0 1.0\n", encoding="ascii")

    assert units_between(account, 5.0, 10.0) == pytest.approx(2.5 + 2.0)


@pytest.mark.parametrize("half_slow", [False, True])
def test_a_mix_has_the_exact_shares_and_its_lengths_the_true_distribution(half_slow: bool) -> None:
    mix = Mix(3, half_slow)
    dealer = Dealer(mix)
    prompts = range(BLOCK * GROUPS_A_DEAL)

    kinds = [mix.kind(number) for number in prompts]
    lengths = [length for number in prompts for length in dealer.base_lengths(str(number), number)]

    assert {name: sum(kind.name == name for kind in kinds) for name in KINDS} == {name: n * GROUPS_A_DEAL for name, n in KINDS.items()}
    assert sum(kind.is_slow for kind in kinds) == (len(kinds) / 2 if half_slow else 0)
    assert sum(lengths) / len(lengths) / TRUE_MEAN == pytest.approx(1, abs=0.01)
    assert sum(length > LONGEST_5 for length in lengths) / len(lengths) == pytest.approx(0.05, abs=0.001)


def test_a_group_keeps_what_it_was_dealt() -> None:
    """A rollout that is begun again, after its worker died, is as long as before."""
    dealer = Dealer(Mix(1))

    first = dealer.base_lengths("a", 0)
    dealer.base_lengths("b", 0)

    assert dealer.base_lengths("a", 0) == first
