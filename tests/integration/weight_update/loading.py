"""How the trainers of these tests load weights, and what they load for which version."""

from __future__ import annotations

from pipeline.engines import Exchange, engine_kind

OLD = "weights-of-the-start"
"""What a server holds that has just started."""


def weights_of(label: str) -> str:
    """What is loaded for a version, as records call it; what servers hold before has no label of the run's."""
    return OLD if label == "default" else f"weights-{label}"


async def load(url: str, weights: str) -> None:
    """What a trainer does in the block, here over vLLM's development route, or SGLang's own. The label is not its business."""
    async with Exchange(url) as http:
        if await engine_kind(http) == "sglang":
            await http.post("/update_weights_from_disk", {"model_path": weights})
        else:
            await http.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": weights}})
