"""`python -m examples.train_tiny train|ablation|curves`: see the README beside this file."""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str]) -> int:
    """The command line; 1 when what was started failed, 2 without torch."""
    arguments = parse(argv)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the other core is the workers'
    try:
        import matplotlib  # noqa: F401
        import safetensors  # noqa: F401
        import torch
    except ModuleNotFoundError as missing:
        print(f"this needs {missing.name}: pip install 'rollstream[train-tiny]'", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    from examples.train_tiny import ablation, curves, supervised
    from examples.train_tiny.fleet import running_fleet
    from examples.train_tiny.training import Options, Training
    from ops.child_processes import ChildEnded
    from pipeline.errors import RollstreamError
    from pipeline.logs import configure_logs

    configure_logs(as_json=False, level="error")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job begins with it switched off
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    out = arguments.out.absolute()
    if arguments.command == "curves":
        curves.draw(out, out.name)
        return 0
    begins = arguments.supervised.absolute() if arguments.supervised else out / "supervised"
    try:
        supervised.make_supervised(begins, seed=arguments.supervised_seed, steps=arguments.supervised_steps, say=say)
        with running_fleet(out, begins, slots=arguments.slots, sandbox=arguments.sandbox) as fleet:
            if arguments.command == "ablation":
                return asyncio.run(ablation.run(fleet, begins, out, seed=arguments.seed, steps=arguments.steps, say=say))
            options = Options(
                out=out,
                seed=arguments.seed,
                minutes=arguments.minutes,
                steps=arguments.steps,
                groups=arguments.groups,
                n=arguments.n,
                learning_rate=arguments.learning_rate,
                shuffle_advantages=arguments.shuffle_advantages,
                measure_every=arguments.measure_every,
                measure_tasks=arguments.measure_tasks,
                held_out_tasks=arguments.held_out_tasks,
                goal=arguments.goal,
            )
            began_load, began_cpu_s = os.getloadavg()[0], time.process_time()
            outcome = asyncio.run(Training(options, fleet, begins).run())
            trainer_cpu_s = time.process_time() - began_cpu_s
    except KeyboardInterrupt:
        say("stopped; the same command goes on from the last checkpoint")
        return 130
    except (RollstreamError, ChildEnded, TimeoutError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    curves.draw(out, f"seed {arguments.seed}{', shuffled advantages' if arguments.shuffle_advantages else ''}")
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)  # all processes of the fleet have ended, and so have theirs
    say(
        f"held out {outcome.before:.3f} -> {outcome.after:.3f} in {outcome.steps} steps and {outcome.minutes:.1f} minutes; CPU: trainer "
        f"{trainer_cpu_s:.0f} s, fleet {ended.ru_utime + ended.ru_stime:.0f} s; load average {began_load:.1f} at the start, "
        f"{os.getloadavg()[1]:.1f} in the last five minutes; {out / curves.PNG}"
    )
    return 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="python -m examples.train_tiny", description="Trains a small language model with DAPO, on a CPU.")
    commands = parser.add_subparsers(dest="command", required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--out", type=Path, default=Path("train-tiny"), help="folder of the run (./train-tiny)")
    shared.add_argument("--seed", type=int, default=1)
    shared.add_argument("--supervised", type=Path, help="folder with the checkpoint to begin with; else it is made under --out")
    shared.add_argument("--supervised-seed", type=int, default=1, help="of that checkpoint; the same for every --seed (1)")
    shared.add_argument("--supervised-steps", type=int, default=700, help="of making it (700)")
    shared.add_argument("--slots", type=int, default=24, help="rollouts at once (24)")
    shared.add_argument(
        "--sandbox", default="process", help="backend of the sandboxes: process (no walls), or auto where bubblewrap or Apptainer works"
    )
    train = commands.add_parser("train", parents=[shared], help="train, or go on with a run that was stopped")
    train.add_argument("--minutes", type=float, default=15.0, help="of training (15)")
    train.add_argument("--steps", type=int, default=10_000, help="at most so many")
    train.add_argument("--groups", type=int, default=8, help="informative groups a step (8)")
    train.add_argument("--n", type=int, default=8, help="rollouts a group (8)")
    train.add_argument("--learning-rate", type=float, default=3e-4)
    train.add_argument("--shuffle-advantages", action="store_true", help="the control: nothing can be learned from them")
    train.add_argument("--measure-every", type=int, default=5, metavar="STEPS", help="held-out measurement (5)")
    train.add_argument("--measure-tasks", type=int, default=60, metavar="N", help="held-out tasks of one in between (60)")
    train.add_argument("--held-out-tasks", type=int, default=200, metavar="N", help="held-out tasks of the first and the last one (200)")
    train.add_argument("--goal", type=float, default=0.9, help="held-out mean that ends the run; 0 = time alone does (0.9)")
    compare = commands.add_parser("ablation", parents=[shared], help="what cancelling and replenishing save")
    compare.add_argument("--steps", type=int, default=6, help="steps of each arm (6)")
    commands.add_parser("curves", parents=[shared], help="draw the curves of a run again")
    return parser.parse_args(argv)


def say(text: str) -> None:
    """A line with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
