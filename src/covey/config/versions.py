"""Versions that a dry run needs without importing PyTorch or TRL; a test compares them with TRL."""

VLLM_RANGE = ((0, 22), (0, 31))
"""The first and the last of vLLM's minor versions that TRL 1.16 declares."""
