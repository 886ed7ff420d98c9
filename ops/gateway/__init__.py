"""The pipeline over HTTP: the original's routes and our own, for trainers that have no `trainer_client` (docs/adr/0024-gateway.md).

serving            serve, Listening: a gateway process
settings           GatewaySettings
"""

from ops.gateway.serving import EXIT_FENCED, Listening, serve
from ops.gateway.settings import GatewaySettings

__all__ = ["EXIT_FENCED", "GatewaySettings", "Listening", "serve"]
