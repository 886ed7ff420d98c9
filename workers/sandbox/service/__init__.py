"""The node service: one process a node that owns its sandboxes, and how workers hold them (ADR 17).

NodeSandboxes, SandboxServer      the service's side
RemoteSandboxes                   the workers' side: a `SandboxProvider`
served_here                       both in one process
"""

from workers.sandbox.service.client import RemoteSandboxes
from workers.sandbox.service.in_process import served_here, serving_here
from workers.sandbox.service.link import ServiceNotThere
from workers.sandbox.service.node import Attachment, EndReport, NodeSandboxes, OwnedSandbox, Worker
from workers.sandbox.service.remote import RemoteSandbox
from workers.sandbox.service.server import SandboxServer

__all__ = [
    "Attachment",
    "EndReport",
    "NodeSandboxes",
    "OwnedSandbox",
    "RemoteSandbox",
    "RemoteSandboxes",
    "SandboxServer",
    "ServiceNotThere",
    "Worker",
    "served_here",
    "serving_here",
]
