"""The scripted model server of `bench cancel`, which notes when each generation request came and when it was over.

    python -m ops.bench.cancel_model SOCKET DIARY

Lines of the diary: `call JOB SECONDS` and `over JOB SECONDS`, by the monotonic clock.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

from ops.bench.cancel_task import Diary
from pipeline.event_loop import run_process
from pipeline.process import Shutdown
from workers.llm.scripted.call import Call, Output
from workers.llm.scripted.engine import Engine
from workers.llm.scripted.options import Latency, ServerOptions
from workers.llm.scripted.policy import Policy
from workers.llm.scripted.server import ScriptedServer, serve_until
from workers.llm.tokenizer import Tokenizer

TOKEN_S = 0.02
JOB = re.compile(r"bench\d+\.g\d+\.\d+\.\d+")
WORD = 7
"""It says one token as often as it may: what a policy would say takes longer to make than the calls of the benchmark last."""


class NotingEngine(Engine):
    """Notes its calls, and says what is made quickly."""

    def __init__(self, options: ServerOptions, tokenizer: Tokenizer, policy: Policy, diary: Diary) -> None:
        super().__init__(options, tokenizer, policy)
        self._diary = diary

    async def run(self, call: Call) -> Output:
        job = job_of(call.request_id)
        self._diary.note("call", job)
        try:
            return await super().run(replace(call, script=(WORD,) * call.sampling.max_tokens))
        finally:
            self._diary.note("over", job)


def job_of(request_id: str) -> str:
    """The job in a request's id, which the wire may have given a prefix, and which ends in attempt and number; `none` of a probe."""
    found = JOB.search(request_id)
    return found[0] if found else "none"


async def main(socket: Path, diary: Diary) -> int:
    """Serves until it is told to stop."""
    shutdown = Shutdown()
    shutdown.on_signals()
    shutdown.on_parent_exit()
    options = ServerOptions(latency=Latency(per_token_s=TOKEN_S, sigma=0.0), max_running=1_024, max_requests=4_096)
    server = ScriptedServer(options, socket_path=socket)
    server.engine = NotingEngine(options, server.tokenizer, server.policy, diary)
    await serve_until(shutdown.stop, server, lambda url: print(url, flush=True))
    return 0


if __name__ == "__main__":
    sys.exit(run_process(main(Path(sys.argv[1]), Diary(Path(sys.argv[2])))))
