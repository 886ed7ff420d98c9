"""Tasks of Harbor: a folder of tests that is brought in when the agent is done, and a file that they write the reward into.

HarborTask, TaskFile      what a task is (`task.py`)
verify, solve, Verified   its tests and its solution, run in a sandbox (`verify.py`)
reward_of, Reward         what the reward file says (`reward.py`)
"""

from workers.graders.harbor.reward import Reward, reward_of
from workers.graders.harbor.task import HarborTask, TaskFile
from workers.graders.harbor.verify import Verified, solve, verify

__all__ = ["HarborTask", "Reward", "TaskFile", "Verified", "reward_of", "solve", "verify"]
