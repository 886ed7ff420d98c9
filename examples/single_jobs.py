"""Single rollouts: submit them, await them as they come, cancel one, let go of them.

    python examples/single_jobs.py --run evals --task math --limit 4

Workers and a model are needed as for `trainer_loop.py`; a supervisor is not, since these jobs are in no group. Submitting a job again
under its id changes nothing: a program that was killed begins again with the same `--prefix`, and what has ended meanwhile is there at
once. Results are let go of at the end, all together; after that their ids are used up.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from pipeline.errors import RollstreamError
from trainer_client import JobRequest, LimitsRequest, connect_blocking

PROBLEMS = Path(__file__).resolve().parents[1] / "workers/handlers/math/problems/arithmetic.jsonl"


def main(options: argparse.Namespace) -> None:
    """Blocking on purpose: a script without an event loop uses the same calls without `await`."""
    requests = [
        JobRequest(
            id=f"{options.prefix}-{number}",
            task=options.task,
            prompt=row,
            limits=LimitsRequest(max_turns=4, max_sampled_tokens=1200),
        )
        for number, row in enumerate(read_rows(options.problems)[: options.limit])
    ]
    with connect_blocking(run=options.run) as run:
        jobs = run.submit(requests, wait_s=30.0)
        again = run.submit(requests[:1])  # the same id is the same job
        print(f"submitted {len(jobs)} jobs to run {run.id}; again: {again[0].id}", flush=True)

        if options.cancel:
            print(f"cancel {jobs[-1].id}: {jobs[-1].cancel()}", flush=True)

        ended = []
        for result in run.results(jobs, timeout_s=options.timeout):
            ended.append(result)
            record = result.record
            reward = "none" if result.reward is None else f"{result.reward:g}"
            why = f" ({result.reason})" if result.reason else ""
            print(f"{result.job}: {result.outcome}{why}, reward {reward}, {record.turns} turns, {record.sampled_tokens} tokens", flush=True)
            if result.grade_key:
                print(f"  graded by {result.grade().grader}: {dict(result.grade().details)}")
            if options.show and result.trajectory_key:
                for message in result.trajectory().messages:
                    print(f"  {message.role}: {' '.join(message.content.split())[:100]}")
        run.ack(ended)  # bodies and records go; what is not acked is given out again next time


def read_rows(path: Path) -> list[dict[str, object]]:
    """Rows of a JSON-lines file; a first line that describes the file is left out."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [row for row in rows if "header" not in row]


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run single rollouts and print how they ended.")
    parser.add_argument("--run", default="evals", help="id of the run (evals)")
    parser.add_argument("--task", default="math", help="name of the handler (math)")
    parser.add_argument("--problems", type=Path, default=PROBLEMS, help="JSON lines, one prompt each")
    parser.add_argument("--limit", type=int, default=4, help="how many of them (4)")
    parser.add_argument("--prefix", default=time.strftime("j%m%d%H%M%S"), help="beginning of the jobs' ids (from the time of day)")
    parser.add_argument("--cancel", action="store_true", help="cancel the last one right away")
    parser.add_argument("--show", action="store_true", help="print the dialogues")
    parser.add_argument("--timeout", type=float, default=120.0, help="longest wait for the next result, in seconds (120)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    try:
        main(parse(sys.argv[1:]))
    except RollstreamError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; the jobs go on, and the same --prefix comes back to them")
