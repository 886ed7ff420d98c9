"""From a step to what a trainer trains on: rollouts as plain values, manifests, batches (docs/adr/0023-batches-and-adapters.md).

values       Rollout: one member of a trained group; Manifest, ManifestGroup, ManifestMember: a step without its trajectories
ranks        BodyReader, connect_reader: reads what a manifest names, without a run
advantages   GRPO, LeaveOneOut, Overlong, Advantage; LossMean: which mean the loss is
batches      batch_of, Batch: a rank's share of a step; PaddedRows, PackedRows: the arrays of a microbatch; Row; as_tensors
experts      experts_of: what a row's tokens were routed to, where that was asked for (`routed_experts=True`)
images       RowImage, contents: what the model saw beside a row's tokens (`images=True`), and the files
bad          BadTrajectory: one that must not be trained on
"""

from trainer_client.batches.advantages import GRPO, Advantage, LeaveOneOut, Overlong
from trainer_client.batches.batch import Batch, BatchHow, Microbatch, TokenAdvantages, batch_of
from trainer_client.batches.experts import experts_of
from trainer_client.batches.images import RowImage, contents
from trainer_client.batches.loss_weights import LossMean
from trainer_client.batches.manifest import Manifest, ManifestGroup, ManifestMember
from trainer_client.batches.packed import PackedRows
from trainer_client.batches.padded import PaddedRows
from trainer_client.batches.partition import RowPlace
from trainer_client.batches.reader import BodyReader, connect_reader
from trainer_client.batches.rollout import Rollout
from trainer_client.batches.rows import BadTrajectory, Row
from trainer_client.batches.tensors import as_tensors

__all__ = [
    "GRPO",
    "Advantage",
    "BadTrajectory",
    "Batch",
    "BatchHow",
    "BodyReader",
    "LeaveOneOut",
    "LossMean",
    "Manifest",
    "ManifestGroup",
    "ManifestMember",
    "Microbatch",
    "Overlong",
    "PackedRows",
    "PaddedRows",
    "Rollout",
    "Row",
    "RowImage",
    "RowPlace",
    "TokenAdvantages",
    "as_tensors",
    "batch_of",
    "connect_reader",
    "contents",
    "experts_of",
]
