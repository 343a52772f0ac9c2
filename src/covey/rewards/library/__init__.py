"""The reward functions that come with Covey."""
