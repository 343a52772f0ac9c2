"""Checks the architecture rules in the sources. `test_architecture.py` applies it; `scripts/draw_map.py` draws from it.

An import counts wherever it is written: at the top, in a function, for type checking only, or by `import_module` of a
literal name. `from package import name` imports the package's `__init__` and the module that the name comes from. That
importing `a.b.c` also runs `a/__init__.py` and `a/b/__init__.py` does not count: every package that re-exports anything
would be a cycle.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

LAYERS = {
    "_version": 0,
    "advice": 0,
    "errors": 0,
    "former_paths": 0,
    "hub": 1,
    "log_once": 0,
    "importing": 1,
    "sandbox": 1,
    "config": 1,
    "answers": 2,
    "runlog": 2,
    "workers": 2,
    "data": 3,
    "rewards": 3,
    "objective": 3,
    "model": 4,
    "rollout": 5,
    "environments": 5,
    "evaluation": 6,
    "report": 7,
    "view": 8,
    "training": 8,
    "launch": 8,
    "cli": 9,
    "api": 9,
    "__main__": 10,
    "__init__": 10,  # `import covey`: the front door, which hands out the public names
}
"""Imports between packages point to lower layers only."""

WITHOUT_TORCH = {
    "_version",
    "advice",
    "errors",
    "former_paths",
    "hub",
    "log_once",
    "importing",
    "config",
    "answers",
    "runlog",
    "workers",
    "data",
} | {
    "rewards",
    "sandbox",
    "report",
    "view",
    "launch",
}
TORCH_FAMILY = {"torch", "transformers", "trl", "accelerate", "peft", "vllm", "bitsandbytes", "deepspeed"}
TRL_FOLDER = "training/trl"
ONLY_IN = {"trl": (TRL_FOLDER,), "vllm": ("rollout/vllm", TRL_FOLDER)}
ALSO = {"environments/templates.py": "trl"}
"""The one other module: evaluation renders and parses conversations with tools as training does."""
TRL_PRIVATE = {
    "_calculate_rewards",
    "_compute_loss",
    "_generate",
    "_generate_and_score_completions",
    "_generate_single_turn",
    "_get_per_token_logps_and_entropies",
    "_prepare_inputs",
    "_tool_call_loop",
}
MAX_LINES = 600
LONGER: dict[str, int] = {}
"""Files that may be longer, and how long they are: fewer each time."""

NOT_MIRRORED = {
    "support": "helpers of the tests",
    "browser": "a walk through `covey view` while a run trains",
    "foreign": "recipes of other projects, as data",
    "golden": "behaviour of the whole package, as recorded",
    "real_vllm": "needs an environment of its own",
    "real": "a pretrained model, from training to its export",
    "claimed_gpu": "whole steps on a device that must be claimed before torch is imported",
    "repository": "what lies outside src/: scripts, documentation, packaging",
}
"""Folders of tests/ that mirror no package, and why."""


@dataclass(frozen=True)
class Import:
    """One import statement's target: a module by its full name, or a name in it."""

    module: str
    name: str | None
    line: int
    where: str = ""
    """Empty for an import that runs when its module is loaded; else `type checking` or `in a function`."""


@dataclass(frozen=True)
class Edge:
    """A module imports another one."""

    source: str
    target: str
    line: int
    where: str
    module: str
    """The importing module; `source` may stand for the package that it lies in."""


def imports(path: Path, own: tuple[str, ...]) -> list[Import]:
    """Every import of a file. `own` is the package that the file lies in, by its parts."""
    return list(_walk(ast.parse(path.read_text(encoding="utf-8")), own, ""))


def _walk(node: ast.AST, own: tuple[str, ...], where: str) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, None, node.lineno, where) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = own[: len(own) - node.level + 1] if node.level else ()
        module = ".".join((*base, *filter(None, (node.module or "").split("."))))
        yield from (Import(module, alias.name, node.lineno, where) for alias in node.names)
    elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in {
        "import_module",
        "__import__",
    }:
        yield from (Import(a.value, None, node.lineno, where) for a in node.args if _is_text(a))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        where = "in a function"
    for child in ast.iter_child_nodes(node):
        guarded = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and child in node.body
        yield from _walk(child, own, "type checking" if guarded else where)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


@dataclass
class Tree:
    """The modules below a package's folder, by their full names."""

    folder: Path
    name: str = "covey"
    files: dict[str, Path] = field(default_factory=dict)
    found: dict[str, list[Import]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in sorted(self.folder.rglob("*.py")):
            package = (self.name, *path.relative_to(self.folder).parts[:-1])
            module = ".".join(package if path.stem == "__init__" else (*package, path.stem))
            self.files[module] = path
            self.found[module] = imports(path, package)
        if self.name in self.files:
            self.found[self.name] += _lazy_table(self.files[self.name])

    def relative(self, module: str) -> Path:
        return self.files[module].relative_to(self.folder)

    def targets(self, found: Import) -> Iterator[str]:
        """The modules of this tree that one import loads."""
        below = f"{found.module}.{found.name}"
        if below in self.files:
            yield below
            return
        if found.module in self.files:
            yield found.module
            if found.name is not None and (origin := self._origin(found.module, found.name)) is not None:
                yield origin

    def _origin(self, module: str, name: str) -> str | None:
        """The module that a name of a package's `__init__` comes from; None where the package defines it itself."""
        seen = {module}
        origin = None
        while self.files[module].stem == "__init__":
            found = next((i for i in self.found[module] if i.name == name and i.module in self.files), None)
            if found is None or found.module in seen:
                break
            if (below := f"{found.module}.{name}") in self.files:
                return below
            seen.add(found.module)
            module = origin = found.module
        return origin

    def edges(self, depth: int | None = None) -> list[Edge]:
        """Every import between two modules, once per pair, the earliest line first.

        With a depth, between the packages and modules that many levels deep, so that a package is one node.
        """
        edges: dict[tuple[str, str], Edge] = {}
        for module, found in self.found.items():
            source = _cut(module, depth)
            for one in sorted(found, key=lambda one: one.line):
                for target in (_cut(target, depth) for target in self.targets(one)):
                    if target != source and (depth is None or target.count(".") == depth):
                        edges.setdefault((source, target), Edge(source, target, one.line, one.where, module))
        return list(edges.values())

    def cycles(self, depth: int | None = None) -> list[str]:
        """For every import that is part of a cycle, the shortest such cycle; each as a chain, none twice.

        Args:
            depth: as for `edges`.
        """
        outgoing: dict[str, dict[str, Edge]] = {}
        for edge in self.edges(depth):
            outgoing.setdefault(edge.source, {})[edge.target] = edge
        chains: dict[frozenset[str], list[Edge]] = {}
        for edge in self.edges(depth):
            back = _shortest(outgoing, edge.target, edge.source)
            if back is not None:
                chain = [edge, *back]
                start = min(range(len(chain)), key=lambda place: chain[place].source)
                chains.setdefault(frozenset(e.source for e in chain), chain[start:] + chain[:start])
        ordered = sorted(chains.values(), key=lambda chain: (len(chain), [edge.source for edge in chain]))
        return [f"import cycle: {' → '.join(map(self._link, chain))} → {chain[0].source}" for chain in ordered]

    def _link(self, edge: Edge) -> str:
        where = f", {edge.where}" if edge.where else ""
        return f"{edge.source} ({self.relative(edge.module)}:{edge.line}{where})"


def _cut(module: str, depth: int | None) -> str:
    return module if depth is None else ".".join(module.split(".")[: depth + 1])


def _lazy_table(path: Path) -> Iterator[Import]:
    """The front door's table of names and the modules that hold them, which `__getattr__` imports on first use."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Dict)
            and ast.unparse(node.targets[0]) == "_HOMES"
        ):
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                if key is not None and _is_text(key) and _is_text(value):
                    yield Import(ast.literal_eval(value), ast.literal_eval(key), value.lineno, "in a function")


def _is_named(node: ast.Assign, name: str) -> bool:
    return ast.unparse(node.targets[0]) == name


def _shortest(outgoing: dict[str, dict[str, Edge]], start: str, goal: str) -> list[Edge] | None:
    """The shortest way along imports from one module to another."""
    came: dict[str, Edge] = {}
    queue = deque([start])
    while queue:
        here = queue.popleft()
        if here == goal:
            way: list[Edge] = []
            while here != start:
                way.append(came[here])
                here = came[here].source
            return way[::-1]
        for target, edge in outgoing.get(here, {}).items():
            if target not in came and target != start:
                came[target] = edge
                queue.append(target)
    return None


def violations(package: Path) -> list[str]:
    """Every breach of the architecture rules below `package`, each with its file and line."""
    tree = Tree(package)
    found = []
    for module, path in tree.files.items():
        relative = path.relative_to(package)
        own = relative.parts[0].removesuffix(".py")
        if own not in LAYERS:
            found.append(f"{relative}: the package '{own}' has no layer: give it one in LAYERS and in the design")
            continue
        found += _bad_imports(tree, module, own)
        if path.stem in {"utils", "util"}:
            found.append(f"{relative}: name a file after what it holds, not '{path.stem}'")
        most = LONGER.get(relative.as_posix(), MAX_LINES)
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > most:
            found.append(f"{relative}: {lines} lines; at most {most}: is it one subject?")
        if not relative.is_relative_to(TRL_FOLDER):
            found += [
                f"{relative}:{line}: {name} is TRL's private method; only {TRL_FOLDER}/ may name it"
                for name, line in _names(path)
                if name in TRL_PRIVATE
            ]
    return [*found, *(tree.cycles() or tree.cycles(depth=2))]


def _bad_imports(tree: Tree, module: str, own: str) -> Iterator[str]:
    relative = tree.relative(module)
    reported = set()
    for found in tree.found[module]:
        first, _, rest = found.module.partition(".")
        where = f"{relative}:{found.line}: imports {found.module}"
        if first == tree.name:
            # `from covey import data` imports a package; anything else comes from the front door.
            target = rest.split(".")[0] or (found.name if found.name in LAYERS else "__init__")
            if target not in LAYERS:
                breach = f"{where}, which has no layer"
            elif target != own and LAYERS[target] >= LAYERS[own]:
                breach = f"{where}, on layer {LAYERS[target]}, from layer {LAYERS[own]}: imports point down only"
            else:
                continue
        elif first in TORCH_FAMILY and own in WITHOUT_TORCH:
            breach = f"{where}: {own} never imports torch or what brings it"
        elif (
            first in ONLY_IN
            and ALSO.get(relative.as_posix()) != first
            and not any(relative.is_relative_to(folder) for folder in ONLY_IN[first])
        ):
            breach = f"{where}: only {' and '.join(f'{folder}/' for folder in ONLY_IN[first])} may"
        else:
            continue
        if breach not in reported:
            reported.add(breach)
            yield breach


def _names(path: Path) -> Iterator[tuple[str, int]]:
    """Attribute names, function names and strings: the ways of naming a method."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            yield node.attr, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno
        elif _is_text(node):
            yield ast.literal_eval(node), node.lineno


def violations_of_tests(tests: Path, package: Path) -> list[str]:
    """Tests that import another test, and folders of tests that mirror no package."""
    found = []
    for path in sorted(tests.rglob("*.py")):
        for one in imports(path, path.relative_to(tests).parts[:-1]):
            named = one.module if one.name is None or one.module.startswith("covey") else f"{one.module}.{one.name}"
            if any(part.startswith("test_") for part in named.split(".")):
                where = f"{path.relative_to(tests)}:{one.line}"
                found.append(f"{where}: imports {named} from a test; what tests share lies in tests/support")
    for folder in sorted({path.parent for path in tests.rglob("test_*.py")} - {tests}):
        relative = folder.relative_to(tests)
        if relative.parts[0] not in NOT_MIRRORED and not (package / relative / "__init__.py").is_file():
            found.append(f"{relative.as_posix()}/: mirrors no package in src/covey")
    return found
