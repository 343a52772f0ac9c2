"""The starter models: about a million parameters each, shipped inside the package, made by `covey starter`.

Importing this stays light; `coldstart` and `tokenizer` need PyTorch and transformers.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

STARTER_PATH = Path(__file__).parent / "weights"
"""The shipped model, a plain folder that `AutoModelForCausalLM.from_pretrained` loads."""
AGENT_PATH = Path(__file__).parent / "agent_weights"
"""The shipped model that can call a tool."""
STARTERS = MappingProxyType({"starter": STARTER_PATH, "starter_agent": AGENT_PATH})
"""The shipped models by name."""
