"""An interpreter that has a vLLM, as far as `rollstream llm serve` can tell: the scripted server under vLLM's command line.

It answers what is asked of an installation, and started as a server it logs what vLLM logs and serves vLLM's wire, with a worker process of
its own that does not end by itself. `PRETEND_FAILURE` in the environment makes the start fail with that line;
with `PRETEND_LOADING` it does not come to its end; with `PRETEND_OPEN` it takes `--middleware` and does not load it. Each start adds a line
to `gpus` beside it: the GPUs that it sees, and over how many it is spread.
"""

from __future__ import annotations

import stat
import sys
from pathlib import Path

from tests.e2e.conftest import ROOT

_PROGRAM = """#!{python}
import json, os, subprocess, sys, time
words = sys.argv[1:]
if "-c" in words:
    print("/opt/vllm/__init__.py 1")
elif words[-1].endswith("describe_vllm.py"):
    flags = ["--host", "--port", "--served-model-name", "--max-model-len", "--logprobs-mode", "--generation-config", "--enable-scale-out",
        "--middleware", "--tensor-parallel-size"]
    print(json.dumps({{"version": "0.32.0", "device": "cpu", "flags": flags, "module": ["vllm.entrypoints.pretended"]}}))
else:
    value = dict(zip(words, words[1:]))
    print("Resolved architecture: Qwen3ForCausalLM", flush=True)
    if os.environ.get("PRETEND_FAILURE"):
        sys.exit(os.environ["PRETEND_FAILURE"])
    if os.environ.get("PRETEND_LOADING"):
        time.sleep(600)
    guard = os.path.join(os.environ["PYTHONPATH"], "key_guard.py")
    guarded = value.get("--middleware") == "key_guard.KeyOnEveryRoute" and os.path.exists(guard) and not os.environ.get("PRETEND_OPEN")
    with open({folder!r} + "/gpus", "a") as file:
        file.write(f"{{os.environ.get('CUDA_VISIBLE_DEVICES')}} {{value.get('--tensor-parallel-size')}}\\n")
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", deaf, {mark!r}])
    with open({folder!r} + "/key", "w") as file:
        file.write(os.environ.get("VLLM_API_KEY", ""))
    os.chdir({root!r})
    os.execv(sys.executable, [sys.executable, "-m", "workers.llm.scripted", "--host", value["--host"], "--port", value["--port"],
        "--model", value["--served-model-name"], "--api-key-file", {folder!r} + "/key",
        *(["--key-on-every-route"] if guarded else [])])
"""


def pretended_vllm(folder: Path) -> Path:
    """Writes it, and answers what `--python` takes."""
    program = folder / "python-with-vllm"
    program.write_text(_PROGRAM.format(python=sys.executable, root=str(ROOT), folder=str(folder), mark=str(folder)))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program
