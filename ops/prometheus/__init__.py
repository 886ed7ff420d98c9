"""Files for Prometheus and Grafana: alerts.yml, the rules; grafana.json, the board. Nothing here is imported (docs/how-to/alerts.md)."""
