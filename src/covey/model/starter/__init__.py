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


def name_starters(folder: Path) -> None:
    """Let the files of adapters name a starter that they belong to, not the place that it has on this machine."""
    for file in (*folder.rglob("adapter_config.json"), *folder.rglob("README.md")):
        for name, place in STARTERS.items():
            if str(place) in (text := file.read_text(encoding="utf-8")):
                file.write_text(text.replace(str(place), name), encoding="utf-8")
