"""Every table of `rollstream.toml`, with the model that reads it."""

from __future__ import annotations

from collections.abc import Mapping

from ops.gateway.settings import GatewaySettings
from ops.housekeeping.settings import HousekeepingSettings
from ops.llm_server.settings import VllmSettings
from ops.metrics.settings import MetricsSettings
from ops.node.settings import NodeSettings
from ops.plan.settings import PlanSettings
from pipeline.blobs import BlobSettings
from pipeline.settings import QueueSettings, TableSettings
from workers.graders.gym import GymSettings
from workers.sandbox.images import ImageSettings
from workers.sandbox.service.settings import SandboxSettings
from workers.settings import WorkerSettings
from workers.tools.search import SearchSettings

TABLES: Mapping[str, type[TableSettings]] = {
    model.table: model
    for model in (
        QueueSettings,
        WorkerSettings,
        NodeSettings,
        MetricsSettings,
        BlobSettings,
        GatewaySettings,
        SearchSettings,
        GymSettings,
        VllmSettings,
        SandboxSettings,
        ImageSettings,
        HousekeepingSettings,
        PlanSettings,
    )
}
