"""Images: where the files of a sandbox come from."""

from workers.sandbox.images.lease import ImageLease, ImageSource

__all__ = ["ImageLease", "ImageSource"]
