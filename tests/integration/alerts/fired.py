"""Which alerts fire for a pipeline that stands as the exporter says it does: its answers as series, judged by Prometheus's own code."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from tests.promtool import RULES, promtool

RISES_MINUTES = 60
STANDS_MINUTES = 2
"""After it. The longest `for` of a rule is an hour."""
ADDED = {"job": "rollstream", "instance": "127.0.0.1:8007", "rollstream": "exporter", "namespace": "rs"}
"""What Prometheus and the target file add."""
_NAME = re.compile(r'alertname="(\w+)"')


def fired(folder: Path, first: Mapping[str, float], last: Mapping[str, float]) -> set[str]:
    """Names of the alerts that fire after an hour in which counters went from one scrape to the other, and all else stood as in the last.

    Args:
        folder: for the file that promtool is given.
        first: series -> value; equal to `last` where one scrape says it all.
    """
    series = []
    for name, value in {**last, "up": 1.0}.items():
        bare, _, labels = name.partition("{")
        began = first.get(name, value) if bare.endswith("_total") else value
        values = f"{began!r}+{(value - began) / RISES_MINUTES!r}x{RISES_MINUTES} {value!r}x{STANDS_MINUTES}"
        words = ",".join(
            [*filter(None, [labels.removesuffix("}")]), *(f'{key}="{word}"' for key, word in ADDED.items() if f"{key}=" not in labels)]
        )
        series.append({"series": f"{bare}{{{words}}}", "values": values})
    asked = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": series,
                "promql_expr_test": [
                    # of a name that never fires, so promtool says what it found instead
                    {
                        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                        "eval_time": f"{RISES_MINUTES + STANDS_MINUTES}m",
                        "exp_samples": [{"labels": '{alertname="none"}', "value": 1}],
                    }
                ],
            }
        ],
    }
    file = folder / "scraped.yml"
    file.write_text(json.dumps(asked), encoding="utf-8")  # JSON is YAML
    said = promtool("test", "rules", file)
    got = re.search(r"got:(.*)", said.stdout + said.stderr, re.DOTALL)
    assert got is not None, said.stdout + said.stderr
    return set(_NAME.findall(got[1]))
