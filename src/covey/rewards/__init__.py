"""Rewards: plain functions that score completions, and the registry that finds them by name."""

from covey.rewards.registry import find, get_reward, load
from covey.rewards.reward import Graded, Reward, RewardFunction, RewardSettings, completion_text

__all__ = ["Graded", "Reward", "RewardFunction", "RewardSettings", "completion_text", "find", "get_reward", "load"]
