"""A run on one HTML page that needs no network: for looking back, and for showing to others.

gather(client, settings, keys, run, export)     facts, from Redis and from an export of the run
page(facts)                                     the page, as text
"""

from ops.report.facts import RunFacts
from ops.report.gathering import gather
from ops.report.page import page

__all__ = ["RunFacts", "gather", "page"]
