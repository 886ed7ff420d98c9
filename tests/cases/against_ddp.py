"""Compares the gradient that several processes make with torch's DDP, each from its own share of a step, with that of one process alone.

    python tests/cases/against_ddp.py [--python PYTHON] [--ranks N]

`torch` is a gigabyte, so no environment of ours has it: name an interpreter that does (with `redis`, `msgpack`, `orjson`, `pydantic`).
Without one nothing is compared, and the reason is printed. A Redis of its own holds the trajectories; ranks hold a manifest and a reader.
Ends with 1 when a gradient differs by more than float32 makes it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import redis

HOME = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOME))

from pipeline.testing.servers import PrivateServer, found_servers  # noqa: E402 - the script is run by its path
from tests.unit.batches.bodies import bodies_of  # noqa: E402
from tests.unit.batches.manifests import a_manifest, a_member  # noqa: E402

CHILD = r"""
import json, sys
from datetime import timedelta
import torch, torch.distributed as dist, torch.multiprocessing as processes
from pathlib import Path
from trainer_client import GRPO, Manifest, as_tensors, connect_reader_blocking

VOCABULARY = 997
HOWS = [{"pack": 512}, {"rows": 3}]
MEANS = [{"loss": "token_mean"}, {"loss": "trajectory_mean"}, {"loss": "fixed_length", "length": 300}]

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(VOCABULARY, 16)
        self.head = torch.nn.Linear(16, VOCABULARY)

    def forward(self, ids):  # logprob of each token by the logits one place before it; of the first there is none
        said = self.head(self.table(ids[..., :-1])).log_softmax(-1).gather(-1, ids[..., 1:, None])[..., 0]
        return torch.nn.functional.pad(said, (1, 0))

def gradient(url, manifest, rank, world, how):
    model = Model()
    parallel = torch.nn.parallel.DistributedDataParallel(model) if world > 1 else model
    with connect_reader_blocking(url) as reader:
        batch = reader.batch(manifest, shard=(rank, world), advantage=GRPO(), **how)
    for microbatch in batch.microbatches():
        mb = as_tensors(microbatch)
        ratio = (parallel(mb["token_ids"] % VOCABULARY) - mb["behaviour_logprobs"]).exp()
        loss = -torch.min(ratio * mb["advantages"], ratio.clamp(0.8, 1.28) * mb["advantages"])
        ((loss * mb["weights"]).sum() * world).backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters()]), batch.n_microbatches

def work(rank, world, folder, url):
    torch.set_num_threads(1)
    store = dist.FileStore(folder + "/store", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
    manifest = Manifest.from_bytes(Path(folder, "manifest").read_bytes())
    for number, how in enumerate({**how, **mean} for how in HOWS for mean in MEANS):
        found, microbatches = gradient(url, manifest, rank, world, how)
        if rank == 0:
            torch.save((how, found, microbatches), f"{folder}/{number}.pt")
    dist.destroy_process_group()

if __name__ == "__main__":
    folder, url, world = sys.argv[1], sys.argv[2], int(sys.argv[3])
    processes.spawn(work, (world, folder, url), nprocs=world)
    manifest = Manifest.from_bytes(Path(folder, "manifest").read_bytes())
    for number in range(len(HOWS) * len(MEANS)):
        how, found, microbatches = torch.load(f"{folder}/{number}.pt")
        alone, _ = gradient(url, manifest, 0, 1, how)
        differ = float((found - alone).abs().max() / alone.abs().max())
        print(json.dumps({"how": how, "microbatches": microbatches, "norm": float(alone.norm()), "differ": differ}), flush=True)
        assert differ < 1e-4, "the ranks together make another gradient than one alone"
"""


def main() -> int:
    """Compares; 1 when they differ, 0 when they do not or nothing was compared."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--python", default=sys.executable, help="Interpreter that has torch.")
    options.add_argument("--ranks", type=int, default=3)
    given = options.parse_args()
    try:
        subprocess.run([given.python, "-c", "import torch"], capture_output=True, check=True, timeout=120)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"nothing compared: {given.python} has no torch ({error}); name another with --python")
        return 0
    kinds = found_servers()
    if not kinds:
        print("nothing compared: no Redis server found")
        return 0
    random = np.random.default_rng(7)
    groups = [
        [
            a_member(n, tokens=[int(t) for t in random.integers(5, 400, random.integers(1, 4))], reward=float(random.integers(0, 2)))
            for n in range(4)
        ]
        for _ in range(6)
    ]
    manifest = a_manifest(*groups)
    with PrivateServer(kinds[0]) as server, tempfile.TemporaryDirectory() as folder:
        client = redis.Redis.from_url(server.url)
        client.mset(dict(bodies_of(manifest)))
        client.close()
        Path(folder, "manifest").write_bytes(manifest.to_bytes())
        child = Path(folder, "child.py")
        child.write_text(CHILD, encoding="utf-8")
        words = [given.python, str(child), folder, server.url, str(given.ranks)]
        return subprocess.run(
            words, env={"PYTHONPATH": str(HOME), "PATH": "/usr/bin:/bin", "HOME": folder}, check=False, timeout=300
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
