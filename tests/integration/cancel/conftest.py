from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pipeline.redis_client import AsyncClient
from pipeline.settings import QueueSettings
from tests.integration.cancel.workplace import Workplace


@pytest.fixture
async def workplace(settings: QueueSettings, client: AsyncClient) -> AsyncIterator[Workplace]:
    """A run that a trainer has taken, its model server, and no workers yet. A renewal would come too late to tell of a cancel."""
    folder = Path(tempfile.mkdtemp(prefix="rsc", dir="/tmp"))
    patient = settings.model_copy(update={"lease_s": 60.0, "retry_backoff_s": 600.0, "retry_backoff_max_s": 600.0})
    workplace = Workplace(patient, client, folder)
    await workplace.connect()
    yield workplace
    for handler in workplace.handlers:
        handler.may_end.set()  # where a test failed, one that does not hear of its cancel would keep the loop for ever
    try:
        await workplace.leave_all()
    finally:
        await workplace.leave()
        await workplace.close()
        shutil.rmtree(folder)
