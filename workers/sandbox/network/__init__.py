"""The class `isolated+network`: a sandbox whose only way out is a proxy with a list of allowed hosts (ADR 16, Limits)."""

from workers.sandbox.network.listener import listen_inside
from workers.sandbox.network.proxy import PORT, AllowListProxy, proxy_variables
from workers.sandbox.network.rules import NetworkRules

__all__ = ["PORT", "AllowListProxy", "NetworkRules", "listen_inside", "proxy_variables"]
