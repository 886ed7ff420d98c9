"""The contract and the queue: messages, keys, scripts, streams, leases, retry rules. Knows nothing of agents, sandboxes or trainers."""
