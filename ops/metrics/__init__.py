"""Metrics for Prometheus (docs/adr/0032-metrics.md).

the list           definitions: OF_THE_QUEUE, OF_A_NODE, Families
the queue          exporter (serve, Exporter), leadership, queue (facts as metrics), balance (missing and doubled jobs)
a node             node (what its processes count, added up), node_listener
where it answers   settings (MetricsSettings), listener, targets
"""
