"""The arms, tasks and seeds of the study, as `preregistration.md` names them, and the command that trains one run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
TASKS = ("countdown", "graph_coloring")
PROBLEMS = {
    "countdown": (
        "dataset.difficulty.min_operands=4",
        "dataset.difficulty.max_operands=4",
        "dataset.difficulty.max_digits=1",
        "dataset.difficulty.min_modes=2",
        "dataset.difficulty.max_modes=16",
    ),
    "graph_coloring": (),
}
"""Where a task's problems differ from its defaults: the same for starts, runs and measurements."""
STARTS = (0, 1, 2)
STEPS, EVERY = 60, 10
CHECKPOINTS = tuple(range(EVERY, STEPS + 1, EVERY))
SEEDS, FEWER_SEEDS = tuple(range(8)), tuple(range(4))
BASELINES = ("dr_grpo", "grpo")


@dataclass(frozen=True, slots=True)
class Arm:
    """One objective with its settings."""

    name: str
    objective: str
    settings: tuple[str, ...] = ()
    tilt: float | None = None
    """d, from which τ follows for each task; see `tau`."""
    primary: bool = True

    @property
    def seeds(self) -> tuple[int, ...]:
        return SEEDS if self.primary else FEWER_SEEDS


ARMS = (
    Arm("dr_grpo", "dr_grpo"),
    Arm("grpo", "grpo", ("training.loss_type=grpo",)),
    Arm("maxrl", "maxrl"),
    Arm("xdr d≈1.6", "xdr", tilt=1.6),
    Arm("xdr d≈6 kept", "xdr", ("objective.xdr_keep_prompt_weight=true",), tilt=6.0),
    Arm("maxent τ=0.3", "maxent", ("objective.maxent_tau=0.3",), primary=False),
    Arm("maxent τ=0.1", "maxent", ("objective.maxent_tau=0.1",), primary=False),
    Arm("xdr d≈6", "xdr", tilt=6.0, primary=False),
    Arm("unique", "unique", primary=False),
    Arm("seed", "seed", primary=False),
    Arm("token entropy", "token_entropy", primary=False),
)


@dataclass(frozen=True, slots=True)
class Run:
    """One training run."""

    task: str
    arm: Arm
    seed: int

    @property
    def start(self) -> int:
        return self.seed % len(STARTS)

    @property
    def name(self) -> str:
        arm = self.arm.name.replace("≈", "").replace("τ=", "").replace(" ", "-")
        return f"{self.task}-{arm}-seed-{self.seed}"


def runs() -> list[Run]:
    """All runs, primary arms first, and seed by seed, so that a stopped study has its arms at equal numbers."""
    return [
        Run(task, arm, seed)
        for primary in (True, False)
        for seed in SEEDS
        for task in TASKS
        for arm in ARMS
        if arm.primary == primary and seed in arm.seeds
    ]


def tau(tilt: float, share: float) -> float:
    """τ for d = T / (T_max τ), rounded to two digits.

    Args:
        tilt: d.
        share: T / T_max, the mean length of the start's completions as a share of the longest.
    """
    return float(f"{share / tilt:.2g}")


def training(run: Run, start: Path, output: Path, share: float) -> list[str]:
    """The arguments of `covey` that train a run.

    Args:
        run: which.
        start: the folder of its start.
        output: the folder for runs.
        share: see `tau`.
    """
    own = [f"objective={run.arm.objective}", *run.arm.settings]
    if run.arm.tilt is not None:
        own.append(f"objective.xdr_tau={tau(run.arm.tilt, share):g}")
    where = [f"output_dir={output}", f"run_name={run.name}", f"model.name={start}", f"seed={run.seed}"]
    return ["train", str(HERE / f"{run.task}.yaml"), *PROBLEMS[run.task], *own, *where, "overwrite=true"]
