"""The inference servers of each run: which job calls which, when, and what is known of them (docs/adr/0012-inference-pool.md).

    InferencePool                 attach, drain, assign, begin and end calls, state (`pool.py`)
    PoolLooks                     what keepers ask and say: looks, sweeps, aborts (`looks.py`)
    PoolPlaces                    how many jobs may act in each process, and how busy the servers are (`places.py`)
    Server, Assignment, ...       what goes in and out (`records.py`)
    label, number_of, ...         the labels of weights (`labels.py`)
    wrong_address                 what may be the address of a server (`addresses.py`)
    why_waiting, standing         the state for people: reasons (`pipeline.causes`), and sentences (`words.py`)

State is in Redis under a tag of its own, `{<namespace>:pool}`; its keys are listed in `pipeline/keys.py`, its scripts are `pool_*.lua`.
"""

from pipeline.inference_pool.addresses import wrong_address
from pipeline.inference_pool.labels import ANY, AllowedLabels, label, label_in_record, number_of, updating_label
from pipeline.inference_pool.looks import DueLook, Looked, PoolLooks, Seen
from pipeline.inference_pool.places import PlacesOf, PoolPlaces, RunLoad, SeenLoad, read_places
from pipeline.inference_pool.pool import InferencePool
from pipeline.inference_pool.records import (
    Assignment,
    BeginRefusal,
    Begun,
    Call,
    EndedCall,
    NoServer,
    Pause,
    PoolState,
    Server,
    ServerState,
    ServerTaken,
    Sign,
    Wanted,
)
from pipeline.inference_pool.words import pause_words, standing, why_waiting

__all__ = [
    "ANY",
    "AllowedLabels",
    "Assignment",
    "BeginRefusal",
    "Begun",
    "Call",
    "DueLook",
    "EndedCall",
    "InferencePool",
    "Looked",
    "NoServer",
    "Pause",
    "PlacesOf",
    "PoolLooks",
    "PoolPlaces",
    "PoolState",
    "RunLoad",
    "Seen",
    "SeenLoad",
    "Server",
    "ServerState",
    "ServerTaken",
    "Sign",
    "Wanted",
    "label",
    "label_in_record",
    "number_of",
    "pause_words",
    "read_places",
    "standing",
    "updating_label",
    "why_waiting",
    "wrong_address",
]
