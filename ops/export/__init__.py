"""Results of a run as files that outlive the ack: Parquet or JSON lines, with token arrays, in parts that a later export goes on behind.

export_run(client, keys, run, folder, wishes)     what is new since the last part
DATASETS                                          trajectories, groups, steps: their columns
"""

from ops.export.datasets import DATASETS, Dataset
from ops.export.exporting import Exported, ExportWishes, export_run
from ops.export.parts import ExportError

__all__ = ["DATASETS", "Dataset", "ExportError", "ExportWishes", "Exported", "export_run"]
