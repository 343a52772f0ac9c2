"""Advantages, metrics and columns of every objective on eight batches of two groups, in float64, to six digits."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

from covey.objective import REGISTRY, make
from covey.objective.interface import adapted
from rounding import rounded

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "maxent": [{}, {"tau": 0.05, "fit": "mle"}, {"tau": 2.0, "length_normalize_ref": False}],
    "xdr": [
        {},
        {"tau": 0.0},
        {"tau": 0.3, "reference": 0.2},
        {"tau": 0.3, "adaptive": True, "keep_prompt_weight": True},
    ],
    "passk": [{}, {"k": 3}],
    "unique": [{}, {"alpha": 0.5}],
}
"""Of the objectives that are tried with more than their defaults."""
LOSSES = {"dr_grpo": ("dr_grpo",)}
"""Of the objectives that do not have both of `grpo` and `dr_grpo`."""
P, G, LIMIT = 2, 8, 40


def batches() -> dict[str, dict[str, Any]]:
    found = {}
    for seed, name in enumerate(
        ("graded", "binary", "ties", "equal rewards", "one right", "one excluded", "all but one excluded", "one mode")
    ):
        draw = random.Random(seed)
        rewards = [[draw.random() for _ in range(G)] for _ in range(P)]
        if name in ("binary", "one excluded", "one mode"):
            rewards = [[float(value > 0.4) for value in group] for group in rewards]
        elif name == "ties":
            rewards = [[round(2 * value) / 2 for value in group] for group in rewards]
        elif name == "equal rewards":
            rewards = [[0.25] * G, [1.0] * G]
        elif name == "one right":
            rewards = [[float(place == 3) for place in range(G)] for _ in range(P)]
        counts = [[True] * G for _ in range(P)]
        if name == "one excluded":
            counts[1][5] = False
        elif name == "all but one excluded":
            counts[0] = [place == 2 for place in range(G)]
        lengths = [[draw.randint(1, LIMIT) for _ in range(G)] for _ in range(P)]
        ref, policy = ([[-2 * draw.random() * n for n in group] for group in lengths] for _ in range(2))
        modes = [
            [(0 if name == "one mode" else draw.randrange(3)) if reward > 0.4 else -1 for reward in group]
            for group in rewards
        ]
        mask_PG = torch.tensor(counts)
        rewards_PG = torch.tensor(rewards, dtype=torch.float64).masked_fill(~mask_PG, torch.nan)
        found[name] = {
            "rewards_PG": rewards_PG,
            "mask_PG": mask_PG,
            "ref_logps_PG": torch.tensor(ref, dtype=torch.float64),
            "policy_logps_PG": torch.tensor(policy, dtype=torch.float64),
            "lengths_PG": torch.tensor(lengths),
            "modes_PG": torch.tensor(modes),
            "correct_PG": rewards_PG > 0.4,
            "beta": 0.04,
        }
    return found


def cases(folder: Path) -> dict[str, Any]:
    found = {}
    for name in REGISTRY:
        for settings in SETTINGS.get(name, [{}]):
            for loss in LOSSES.get(name, ("grpo", "dr_grpo")):
                objective = adapted(
                    make(name, **settings), loss_type=loss, num_generations=G, max_completion_length=LIMIT, beta=0.04
                )
                words = " ".join([name, *(f"{key}={value}" for key, value in settings.items()), loss])
                for kind, batch in batches().items():
                    found[f"{words}: {kind}"] = rounded(objective.advantages(**batch), 6)
    return found
