"""The length monitor on what the rules do by a virtual clock: silent where nothing selects by length, and not where something does."""

from __future__ import annotations

from functools import cache

import pytest

from ops.bench.dapo_mix import Mix
from pipeline.messages import Outcome
from pipeline.supervisor.monitors import MOST_GROUPS, Health, LengthBias, WindowGroup, length_bias
from pipeline.supervisor.step_spec import CancelRule, StepSpec
from tests.model.simulated_fleet import SimulatedFleet

TOKENS = 100
"""Of a rollout of length 1."""


class WatchedFleet(SimulatedFleet):
    """Keeps what each group's members had when it was given up."""

    def __init__(self, mix: Mix, spec: StepSpec, *, ahead: int) -> None:
        super().__init__(mix, spec, ahead=ahead)
        self.cut: dict[str, tuple[int, ...]] = {}

    def _stop(self, name: str) -> None:
        unit = self._tokens_a_unit(name)
        self.cut[name] = tuple(int((self.now - began) * unit) for began in self.running.get(name, {}).values())
        super()._stop(name)

    def _tokens_a_unit(self, name: str) -> float:
        """Tokens a unit of time: a slow prompt takes longer for the same ones."""
        prompt = self._prompt(name)
        return TOKENS * self.dealer.base_lengths(name, prompt)[0] / self.dealer.length(name, prompt, 0)

    def window(self) -> list[WindowGroup]:
        """The newest groups as their lines would say."""
        return [self._line(name) for name in self.ledger.records[-MOST_GROUPS:]]

    def _line(self, name: str) -> WindowGroup:
        group = self.ledger.groups[name]
        lengths = self.dealer.base_lengths(name, self._prompt(name))
        ended = [index for index, member in group.members.items() if member.outcome is Outcome.OK]
        return WindowGroup(
            verdict=str(group.verdict),
            prompt=group.prompt,
            age_s=0.0,
            age_versions=None,
            ended=tuple(max(1, int(lengths[index] * TOKENS)) for index in ended),
            cut=self.cut.get(name, ()),
        )


@cache
def watched(over: float, *, slow: bool = False, ahead: int = 0, cancel: CancelRule = CancelRule.DEFAULT) -> LengthBias:
    fleet = WatchedFleet(Mix(1, slow), StepSpec(target=8, n=8, over=over, cancel=cancel), ahead=ahead)
    fleet.run(50)
    return length_bias(fleet.window())


@pytest.mark.parametrize("ahead", [0, 1, 4])
@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("over", [1.0, 1.5, 2.0])
def test_the_default_rule_raises_no_warning(over: float, slow: bool, ahead: int) -> None:
    bias = watched(over, slow=slow, ahead=ahead)

    assert (bias.health, bias.warnings) == (Health.OK, ())
    assert abs(bias.cut_ratio - 1) < 0.05


def test_where_nothing_is_cut_there_is_nothing_to_estimate() -> None:
    bias = watched(1.5, slow=True, ahead=1, cancel=CancelRule.CARRY)

    assert bias.cut_members == 0
    assert bias.cut_ratio == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("over", [1.5, 2.0])
def test_cancelling_everything_is_warned_about(over: float, slow: bool) -> None:
    bias = watched(over, slow=slow, cancel=CancelRule.ALL)

    assert bias.health is Health.WARN
    assert bias.cut_ratio < 0.95
    assert bias.cut_tail < 0.8


def test_without_the_members_that_were_cut_the_bias_would_not_be_seen() -> None:
    """Why the estimate: of groups that closed by themselves, trained and judged lose the same tail."""
    fleet = WatchedFleet(Mix(1, False), StepSpec(target=8, n=8, over=1.5, cancel=CancelRule.ALL), ahead=0)
    fleet.run(50)
    closed = [group for group in fleet.window() if not group.cut]

    assert length_bias(closed).health is Health.OK
