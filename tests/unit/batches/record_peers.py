"""Writes `peers.json`: what the own functions of TRL and verl make of some rewards and token losses, for tests that run without them.

    python tests/unit/batches/record_peers.py --python PYTHON

PYTHON is an interpreter that has `trl`, `verl` with `ray`, and `torch` (they need gigabytes, so no environment of ours has them).
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

CHILD = r"""
import json, random
from importlib.metadata import version
import numpy as np, torch
from trl.trainer.utils import nanstd
from verl.trainer.ppo import core_algos

torch.manual_seed(0)
random.seed(0)
groups = [[1.0, 0.0, 0.0, 1.0], [0.25, 0.5, 1.0], [0.1, 0.1, 0.1, 0.1], [-3.0, 2.0, 0.5, 0.5, 4.0, 1e-3], [1.0, 0.0]]
groups += [[random.gauss(0, 5) for _ in range(random.randint(2, 16))] for _ in range(8)]

def by_verl(function, rewards, **options):
    scores = torch.tensor(rewards, dtype=torch.float64)[:, None]
    mask = torch.ones_like(scores)
    found, _ = function(scores.clone(), mask, np.zeros(len(rewards), dtype=object), **options)
    return found[:, 0].tolist()

def by_trl(rewards):
    # as GRPOTrainer does it with scale_rewards="group": TRL has the formula inside a method, and its deviation as a function
    tensor = torch.tensor(rewards, dtype=torch.float64).view(-1, len(rewards))
    mean, std = torch.nanmean(tensor, dim=1), nanstd(tensor, dim=1)
    return ((tensor[0] - mean) / (std + 1e-4)).tolist()

advantages = [
    {
        "rewards": rewards,
        "verl_grpo": by_verl(core_algos.compute_grpo_outcome_advantage, rewards),
        "verl_grpo_without_std": by_verl(core_algos.compute_grpo_outcome_advantage, rewards, norm_adv_by_std_in_grpo=False),
        "verl_rloo": by_verl(core_algos.compute_rloo_outcome_advantage, rewards),
        "trl_group": by_trl(rewards),
    }
    for rewards in groups
]
losses = []
for rows, width in ((3, 7), (8, 40), (1, 5)):
    loss, mask = torch.randn(rows, width, dtype=torch.float64), (torch.rand(rows, width) < 0.6).double()
    if rows > 1:
        mask[1] = 0.0  # a trajectory that is masked as a whole
    modes = {
        "token_mean": core_algos.agg_loss(loss, mask, "token-mean"),
        "trajectory_mean": core_algos.agg_loss(loss, mask, "seq-mean-token-mean"),
        "fixed_length": core_algos.agg_loss(loss, mask, "seq-mean-token-sum-norm", loss_scale_factor=width),
    }
    found = {name: float(value) for name, value in modes.items()}
    losses.append({"loss": loss.tolist(), "mask": mask.int().tolist(), "length": width, **found})
print(json.dumps({"made_by": {name: version(name) for name in ("trl", "verl", "torch")}, "advantages": advantages, "losses": losses}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="interpreter that has trl, verl and torch")
    made = subprocess.run([parser.parse_args().python, "-c", CHILD], check=True, capture_output=True, text=True).stdout
    Path(__file__).with_name("peers.json").write_text(made.splitlines()[-1] + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
