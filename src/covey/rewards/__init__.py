"""Rewards: plain functions that score completions, and the registry that finds them by name."""

from covey.rewards.registry import RewardFunction, get_reward, load

__all__ = ["RewardFunction", "get_reward", "load"]
