"""The kinds of sandbox that cases of shells and kernels run in, each case in a new sandbox of each kind."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.cases.case import Case, Check, Difference
from tests.contract.sandbox.conftest import BACKENDS, SPEC
from workers.sandbox import Sandbox, SandboxOwner

CaseInSandbox = Callable[[Case, Sandbox], Awaitable[list[Difference]]]


@asynccontextmanager
async def in_each_kind(check_in: CaseInSandbox) -> AsyncIterator[Check]:
    """A check that runs each case in a new sandbox of every kind that works here; differences say which kind they are of."""
    folder = Path(tempfile.mkdtemp(prefix="rs", dir="/tmp"))  # a short path: sockets live below it
    try:
        async with AsyncExitStack() as stack:
            providers = {name: await stack.enter_async_context(make(folder / name)) for name, make in BACKENDS.items()}

            async def check(case: Case) -> list[Difference]:
                found: list[Difference] = []
                for name, provider in providers.items():
                    owner = SandboxOwner(job_id=f"case:{secrets.token_hex(4)}", attempt=1, boot_id="cases")
                    async with await provider.start(SPEC, owner) as sandbox:
                        different = await check_in(case, sandbox)
                    found += [Difference(f"{name}, {one.what}", one.expected, one.found) for one in different]
                return found

            yield check
    finally:
        shutil.rmtree(folder)
