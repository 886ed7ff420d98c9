"""Manifests of Kubernetes: Redis, nodes, supervisor, gateway, metrics (docs/how-to/kubernetes.md)."""
