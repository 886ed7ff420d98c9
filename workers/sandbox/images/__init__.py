"""Images: where the files of a sandbox come from. `store` begins with how they come and go.

ImageStore.here()            the store of this machine, by its settings
store.lease(name)            an extracted image, for as long as it is used; fetches nothing
store.pull(name, source)     brings one: from a registry, an archive, a SIF, a folder
"""

from workers.sandbox.images.budget import Budget, Pruned
from workers.sandbox.images.lease import ImageLease, ImageSource
from workers.sandbox.images.records import NameRecord, TreeRecord
from workers.sandbox.images.settings import ImageSettings
from workers.sandbox.images.store import ImageInterrupted, ImageState, ImageStore

__all__ = [
    "Budget",
    "ImageInterrupted",
    "ImageLease",
    "ImageSettings",
    "ImageSource",
    "ImageState",
    "ImageStore",
    "NameRecord",
    "Pruned",
    "TreeRecord",
]
