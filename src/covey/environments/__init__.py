"""Environments and tools: found by name, run in processes of their own, and driven for whole episodes."""
