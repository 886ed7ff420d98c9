"""A scripted inference server: the wires of vLLM and SGLang, a seeded policy, no GPU. A stand-in whose rewards say nothing of a model.

ScriptedServer   `async with ScriptedServer(...) as server:` in process; `python -m workers.llm.scripted` as a process
ModelServer      the same wire over another engine (`workers/llm/tiny`)
ServerOptions, Latency, PolicyOptions
Problem, read_problems   where the policy knows answers from
Act, ScriptedCall        what it says on a problem, where that is written down
Fault            what it does wrong on demand
DictatedModel, Dictation   a backend whose calls say given ids, over the wire
"""

from workers.llm.scripted.acts import Act, ScriptedCall
from workers.llm.scripted.dictated import DictatedModel, Dictation
from workers.llm.scripted.faults import Fault
from workers.llm.scripted.in_process import InProcessBackend
from workers.llm.scripted.options import Latency, ServerOptions
from workers.llm.scripted.policy import PolicyOptions
from workers.llm.scripted.problems import Problem, read_problems
from workers.llm.scripted.server import ModelServer, ScriptedServer

__all__ = [
    "Act",
    "DictatedModel",
    "Dictation",
    "Fault",
    "InProcessBackend",
    "Latency",
    "ModelServer",
    "PolicyOptions",
    "Problem",
    "ScriptedCall",
    "ScriptedServer",
    "ServerOptions",
    "read_problems",
]
