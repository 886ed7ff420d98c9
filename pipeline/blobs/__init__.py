"""Arrays beside the records, too large for Redis (docs/adr/0026-blobs.md): named by a segment, kept in a store, checked when read.

store      BlobStore, SharedFolder, BlobSettings, open_store: where they lie; Life: one attempt's folder
sweep      sweep_blobs, Swept: deletes what nobody needs; job_states, JobState
experts    ROUTED_EXPERTS, expert_dtype: what every part calls them
bad        BlobError, BlobStoreAway, BlobTooLarge, BlobMissing, DamagedBlob
"""

from pipeline.blobs.errors import BlobError, BlobMissing, BlobStoreAway, BlobTooLarge, DamagedBlob
from pipeline.blobs.experts import ROUTED_EXPERTS, expert_dtype
from pipeline.blobs.names import Life
from pipeline.blobs.opening import open_store
from pipeline.blobs.settings import BlobSettings
from pipeline.blobs.shared_folder import SharedFolder
from pipeline.blobs.store import BlobStore, KeptLife
from pipeline.blobs.sweep import JobState, Swept, job_states, sweep_blobs

__all__ = [
    "ROUTED_EXPERTS",
    "BlobError",
    "BlobMissing",
    "BlobSettings",
    "BlobStore",
    "BlobStoreAway",
    "BlobTooLarge",
    "DamagedBlob",
    "JobState",
    "KeptLife",
    "Life",
    "SharedFolder",
    "Swept",
    "expert_dtype",
    "job_states",
    "open_store",
    "sweep_blobs",
]
