"""Composing a run: Covey's defaults, then the recipe, then the command line from left to right.

Hydra decides which files a run is made of and in which order they are merged; aliases are resolved as each is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from covey.config.compose.build import build
from covey.config.compose.derived_values import keep_of_run, name_by_folder, with_held_out_seed
from covey.config.compose.flags import Flag
from covey.config.compose.group_files import Roots
from covey.config.compose.overrides import read_overrides
from covey.config.compose.recipe import ConfigFile, find_recipe, quoted, read_file
from covey.config.compose.variables import guarded_variables
from covey.config.groups.mesh import Mesh
from covey.config.keys import Choice
from covey.config.live import Given, given_by, refuse_without_effect
from covey.config.schema import Config
from covey.config.secrets import redact
from covey.config.values import BadKeyError
from covey.config.vllm import server_where_addressed
from covey.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_BATCH = "training.per_device_train_batch_size"


@dataclass(frozen=True, slots=True)
class Composed:
    """A composed config, with notes for the user."""

    config: Config
    notes: tuple[str, ...]
    """What was ignored, dropped or computed: one line each."""
    recipe: Path | None
    """The recipe's file."""
    origins: Mapping[str, str]
    """Where the user set a key: `FILE, line N`, or the words on the command line. Defaults are not in it."""
    choices: tuple[Choice, ...]
    """The option of each group, in the order of merging."""
    defaults_tree: tuple[str, ...]
    """The lines that show which file is composed of which; empty for a complete config."""
    given: tuple[Given, ...]
    """What the user set, of which `covey.config.live` says what has no effect."""
    place_of: Callable[[str], str] = field(repr=False, compare=False)
    """Gives the sentence on where the user set a key; empty when it has its default."""

    @contextmanager
    def naming_places(self) -> Iterator[None]:
        """Context manager: an error about a key that is found after composing says where the user set it, as one of
        composing does."""
        try:
            yield
        except BadKeyError as problem:
            raise ConfigError(f"{problem}{'' if problem.where else redact(self.place_of(problem.key))}") from None


def compose(
    overrides: Sequence[str | Flag] = (),
    recipe: str | Path | None = None,
    config_dirs: Sequence[str | Path] = (),
    *,
    config_name: str | None = None,
    world_size: int | Callable[[Config], int] | None = None,
) -> Composed:
    """Compose and check a config without importing torch.

    Args:
        overrides: `group=option`, `key=value`, `+experiment=name`, `~key`, as in Hydra, and flags.
        recipe: a YAML file of group choices (`defaults:`) and keys, or a run directory.
        config_dirs: folders with more groups and options; an option of theirs takes the place of Covey's of that name.
        config_name: a primary config in one of them, which Covey's defaults are put before.
        world_size: number of training processes, or a function of the config; None takes the WORLD_SIZE of the
            launcher, else 1.

    Raises:
        ConfigError: one paragraph that says what is wrong, where, and what would be right.
    """
    with guarded_variables(str(word) for word in overrides):
        return _compose(overrides, recipe, config_dirs, config_name, world_size)


def _compose(
    overrides: Sequence[str | Flag],
    name: str | Path | None,
    config_dirs: Sequence[str | Path],
    config_name: str | None,
    world_size: int | Callable[[Config], int] | None,
) -> Composed:
    from covey.config.compose.defaults_list import Files  # these import OmegaConf and Hydra, which are slow
    from covey.config.compose.merging import Merging
    from covey.config.compose.preset import with_preset

    roots = Roots.of(config_dirs)
    merging: Merging | None = None
    try:
        recipes = _chain(find_recipe(name)) if name is not None else []
        primaries = _chain(roots.primary(config_name)) if config_name is not None else []
        files = Files(roots, primaries, recipes)
        choices, words = read_overrides(overrides, roots)
        merging = Merging(files, words, choices)
        merging, values = with_preset(merging, merging.values())
        settings = [setting for setting in merging.settings if not setting.implied]
        path = next((chain[-1].path for chain in (recipes, primaries) if chain), None)
        if not files.complete:
            foreign = any(source.foreign for source in merging.users[:-1])
            merging.notes += name_by_folder(values, settings, path.stem if path else "", foreign=foreign)
            merging.notes += server_where_addressed(values)
        merging.notes += keep_of_run(values, {setting.key for setting in settings})
        config = build(values, world_size, merging.notes)
        if config.model.mesh_shape is not None and config.sft.rows is None:
            batches = [s.written.name for s in (*merging.settings, *merging.of_preset()[1]) if s.key == _BATCH]
            processes, training = Mesh.of(config.model.mesh_shape).processes, config.training
            step = processes * training.per_device_train_batch_size * training.gradient_accumulation_steps
            if processes > 1 and batches and batches[-1].endswith("micro_batch_size"):
                merging.notes.append(
                    f"a step takes {step // training.num_generations} prompts: {batches[-1]} counts those of one "
                    "process, and in Agent-Tunix those of the whole mesh"
                )
        for key, value in (("run_name", config.run_name or ""), ("output_dir", config.output_dir)):
            if redact(value) != value:
                raise BadKeyError(key, " holds a secret, which would become a folder's name.")
        given = given_by(merging.users, typed_only=files.complete)
        refuse_without_effect(config, given)
    except BadKeyError as problem:
        place = "" if problem.where or merging is None else merging.place_of(problem.key)
        above = "" if merging is None else merging.set_above(problem.key)
        written = None if merging is None else merging.written(problem.key)
        text = str(problem) if written is None else str(problem).replace(*quoted(written))
        raise ConfigError(f"{text}{place}{above}") from None
    read = [note for source in merging.users for note in source.notes]
    notes = dict.fromkeys((*_warnings(config), *files.notes, *read, *merging.notes))
    origins = {s.key: redact(s.written.where) if s.written.typed else s.written.place for s in settings}
    composition = merging.composition
    chosen = [Choice(part.group, part.path.rpartition("/")[2]) for part in composition.parts if part.group]
    return Composed(
        config=config,
        notes=tuple(map(redact, notes)),
        recipe=path,
        origins=MappingProxyType(origins),
        choices=tuple(chosen),
        defaults_tree=() if files.complete and not chosen else composition.lines,
        given=tuple(given),
        place_of=merging.place_of,
    )


def _chain(path: Path, above: Sequence[Path] = ()) -> list[ConfigFile]:
    """A recipe, after those that it builds on."""
    if path in above:
        raise ConfigError(f"{path} builds on itself, by {', '.join(map(str, above))}.")
    file = read_file(path)
    base = file.base()
    if file.complete and base is None:
        file = replace(file, content=with_held_out_seed(file.content))
    return [*(_chain(base, (*above, path)) if base is not None else ()), file]


def load(
    overrides: Sequence[str | Flag] = (),
    recipe: str | Path | None = None,
    config_dirs: Sequence[str | Path] = (),
    *,
    config_name: str | None = None,
    world_size: int | None = None,
) -> Config:
    """The config that `compose` makes of the same arguments; it raises what `compose` does."""
    return compose(overrides, recipe, config_dirs, config_name=config_name, world_size=world_size).config


def _warnings(config: Config) -> list[str]:
    """Warnings about code that comes with a model or a kernel."""
    kwargs = config.training.model_init_kwargs or {}
    attention = str(config.model.attn_implementation or kwargs.get("attn_implementation") or "")
    found = []
    if config.model.trust_remote_code or kwargs.get("trust_remote_code"):
        found.append(f"model.trust_remote_code=true: Python code that comes with {config.model.name}")
    if "/" in attention or kwargs.get("allow_all_kernels"):
        found.append(f"attn_implementation={attention}: compiled code from the hub")
    return [
        f"WARNING: {what} will run on this machine, with all your rights (files, keys, network). Read it first, or "
        "leave the key out."
        for what in found
    ]
