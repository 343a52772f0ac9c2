"""The sizes of a `covey train` that takes a second or two."""

from __future__ import annotations

SMALL = (
    *("training.per_device_train_batch_size=8", "training.gradient_accumulation_steps=1"),
    *("training.num_generations=4", "training.max_completion_length=8", "dataset.train_size=12"),
)
