"""The scripts: every change of state in Redis, each one Lua file with its KEYS, ARGV and replies in its head, called by one typed
function."""

from pipeline.scripts.calls import Accepted, Begun, Claim, Given, HandOff, Held, JournalTurn, NameHolder, Scripts, Settle, Unit
from pipeline.scripts.runner import OutOfMemory, ScriptRunner, ThreadScriptRunner, sha
from pipeline.scripts.sources import source

__all__ = [
    "Accepted",
    "Begun",
    "Claim",
    "Given",
    "HandOff",
    "Held",
    "JournalTurn",
    "NameHolder",
    "OutOfMemory",
    "ScriptRunner",
    "Scripts",
    "Settle",
    "ThreadScriptRunner",
    "Unit",
    "sha",
    "source",
]
