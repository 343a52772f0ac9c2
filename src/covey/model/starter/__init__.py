"""The starter model: about a million parameters, shipped inside the package, made by `covey starter`.

Importing this stays light; `coldstart` and `tokenizer` need PyTorch and transformers.
"""

from __future__ import annotations

from pathlib import Path

STARTER_NAME = "starter"
STARTER_PATH = Path(__file__).parent / "weights"
"""The shipped model, a plain folder that `AutoModelForCausalLM.from_pretrained` loads."""
