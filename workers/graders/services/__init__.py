"""Reward services: graders that are somewhere else, behind HTTP. Jobs name them; `[scorers.NAME]` of rollstream.toml says where they are.

RewardServices      those of a process, by name
ScorerSettings      one of them: a `remote` scorer, or a language model as a `judge`
Asked               what is to be scored
Scored              the score
"""

from workers.graders.services.asked import Asked, Scored
from workers.graders.services.scorers import RewardServices
from workers.graders.services.settings import ScorerSettings, scorers_in

__all__ = ["Asked", "RewardServices", "Scored", "ScorerSettings", "scorers_in"]
