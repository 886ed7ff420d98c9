"""The kinds of sandbox that cases of shells and kernels run in, each case in a new sandbox.

A case names its kind in `input.sandbox`; without, it runs in every kind that works here.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.cases.case import Case, Check, Difference
from tests.contract.sandbox.kinds import KINDS, LOCAL_KINDS
from workers.sandbox import Sandbox, SandboxOwner, SandboxProvider
from workers.sandbox.local.folder import remove_tree

CaseInSandbox = Callable[[Case, Sandbox], Awaitable[list[Difference]]]


@asynccontextmanager
async def in_each_kind(check_in: CaseInSandbox, *, one_for_all: bool = False) -> AsyncIterator[Check]:
    """A check that runs a case in a new sandbox of each of its kinds; differences say which kind they are of.

    Args:
        one_for_all: all cases of a kind get the same sandbox.
    """
    folder = Path(tempfile.mkdtemp(prefix="rs", dir="/tmp"))  # a short path: sockets live below it
    providers: dict[str, SandboxProvider] = {}
    shared: dict[str, Sandbox] = {}
    try:
        async with AsyncExitStack() as stack:

            async def check(case: Case) -> list[Difference]:
                wanted = case.input.get("sandbox")
                found: list[Difference] = []
                for name in [wanted] if wanted else [name for name in LOCAL_KINDS if not KINDS[name].why_not()]:
                    if name not in providers:
                        providers[name] = await stack.enter_async_context(KINDS[name].open(folder / name))
                    owner = SandboxOwner(job_id=f"case:{secrets.token_hex(4)}", attempt=1, boot_id="cases")
                    if one_for_all:
                        if name not in shared:
                            shared[name] = await stack.enter_async_context(await providers[name].start(KINDS[name].spec, owner))
                        different = await check_in(case, shared[name])
                    else:
                        async with await providers[name].start(KINDS[name].spec, owner) as sandbox:
                            different = await check_in(case, sandbox)
                    found += [Difference(f"{name}, {one.what}", one.expected, one.found) for one in different]
                return found

            yield check
    finally:
        remove_tree(folder)
