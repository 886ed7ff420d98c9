"""The backend `apptainer` (and Singularity, which takes the same commands): rootless walls on clusters that have it, in some 100 ms."""

from workers.sandbox.apptainer.backend import ApptainerBackend
from workers.sandbox.apptainer.probe import FoundApptainer, find_apptainer, probe_apptainer

__all__ = ["ApptainerBackend", "FoundApptainer", "find_apptainer", "probe_apptainer"]
