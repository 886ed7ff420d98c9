"""Arrays beside the records, too large for Redis (docs/adr/0026-blobs.md): named by a segment, kept in a store, checked when read.

Nothing here knows Redis; what nobody needs any more is found with it (`pipeline/blob_sweep.py`).

store      BlobStore, SharedFolder, BlobSettings, open_store: where they lie; Life: one attempt's folder
experts    ROUTED_EXPERTS, ExpertRows, expert_rows: what every part calls them
images     IMAGE, ImageKind, image_kind: what an image is, by its header
bad        BlobError, BlobStoreAway, BlobTooLarge, BlobMissing, DamagedBlob, BadImage
"""

from pipeline.blobs.errors import BlobError, BlobMissing, BlobStoreAway, BlobTooLarge, DamagedBlob
from pipeline.blobs.experts import ROUTED_EXPERTS, ExpertRows, expert_rows
from pipeline.blobs.images import IMAGE, BadImage, ImageKind, image_kind
from pipeline.blobs.names import Life
from pipeline.blobs.opening import open_store
from pipeline.blobs.settings import BlobSettings
from pipeline.blobs.shared_folder import SharedFolder
from pipeline.blobs.store import BlobStore, KeptLife

__all__ = [
    "IMAGE",
    "ROUTED_EXPERTS",
    "BadImage",
    "BlobError",
    "BlobMissing",
    "BlobSettings",
    "BlobStore",
    "BlobStoreAway",
    "BlobTooLarge",
    "DamagedBlob",
    "ExpertRows",
    "ImageKind",
    "KeptLife",
    "Life",
    "SharedFolder",
    "expert_rows",
    "image_kind",
    "open_store",
]
