"""One file per config group: its dataclass, every field documented, and its checks."""
