"""The commands as functions of Python: `covey.train`, `covey.evaluate`, `covey.compare` and `covey.generate`."""

from covey.api.functions import compare, evaluate, generate, train

__all__ = ["compare", "evaluate", "generate", "train"]
