"""From what the user wrote, aliases included, to values of Covey's own keys."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from covey.advice import command
from covey.config.aliases.alias_result import ANYTHING, Alias, AliasResult, AliasValueError, DeferredValue
from covey.config.aliases.aliases import FOREIGN_GROUPS, is_peers, look_up, table
from covey.config.aliases.combined import COMBINED, CombinedConversion
from covey.config.aliases.launcher_flags import known_elsewhere, meant
from covey.config.keys import GROUPS, Setting, Source, Written, check_known, did_you_mean, nearest
from covey.config.values import BadKeyError, members, show

_TEXTS = ("dataset.system_prompt", "dataset.user_prompt_template", "logging.notes")
r"""Keys in which a typed `\n` is a new line, and `\\n` these two characters."""

_REFERENCE = re.compile(r"(?<!\\)\$\{([A-Za-z_][\w.]*)\}")
_LAST_NAMED_WINS = "vllm_url"
_NONZERO_WINS = "training.warmup_steps"  # as in transformers, where only one of ratio and steps has an effect
_SHARED = frozenset({"lora"})  # canonical names of several aliases, which need not agree


def leaves(
    values: Mapping[str, Any], prefix: str = "", *, by: str = "recipe", place: Callable[[str], str] = lambda key: ""
) -> Iterator[Written]:
    """Every key of a nested mapping that takes a value, by its dotted name.

    Args:
        values: the mapping.
        prefix: the group that it lies in, with a dot.
        by: what sets the keys, as in `Written`.
        place: where a key is written.

    Raises:
        BadKeyError: a dotted key inside a group, or a group that holds no keys.
    """
    for name, value in values.items():
        item = Written(f"{prefix}{name}", value, by, place(f"{prefix}{name}"))
        if prefix and "." in str(name):
            raise BadKeyError(item.name, " is dotted; only a recipe's top level may be.", item.sentence())
        if item.name in GROUPS or item.name in FOREIGN_GROUPS:
            if isinstance(value, Mapping):
                yield from leaves(value, f"{item.name}.", by=by, place=place)
                continue
            if value is None:
                continue
            known = look_up(item.name)
            if known is None or known.convert is None:
                text = f"={show(value)} is not a mapping: {item.name} is a group and holds keys."
                option = isinstance(value, str) and "." not in item.name and item.name not in FOREIGN_GROUPS
                raise BadKeyError(item.name, text + (_choosing(item.name) if option else ""), item.sentence())
        yield item


def _choosing(group: str) -> str:
    return f" An option is chosen with `{group}=NAME` on the command line, or `defaults: [override /{group}: NAME]`."


def resolve_aliases(
    written: Sequence[Written],
    earlier: Mapping[str, Any],
    label: str,
    *,
    strict: bool,
    more_names: Callable[[str], list[str]] = lambda name: [],
    references: Mapping[str, Any] = MappingProxyType({}),
) -> Source:
    """Resolve the keys of one source to Covey's own.

    Args:
        written: its keys in order.
        earlier: the canonical values of the sources before it.
        label: its name, for notes.
        strict: whether any two settings of one key must agree; on the command line, where the later word wins, only
            two aliases must.
        more_names: gives what else an unknown name may have meant.
        references: what all sources set, by the names written, for `${name}`.

    Raises:
        BadKeyError: an unknown key, a value that an alias cannot have, or two settings that disagree. It names the
            key as the user wrote it, and the place.
    """
    return _AliasResolver(written, dict(earlier), label, strict, more_names, references).run()


def explain_alias(name: str) -> tuple[str, str]:
    """The key that a name stands for, empty if there is no single one, and what another tool's name does here."""
    known = look_up(name)
    if known is None and (advice := known_elsewhere(name, "") or meant(name)):
        return "", name + advice
    if known is None or known.native:
        return name, ""
    another = f"{name} is another tool's name"
    if known.key:
        return known.key, f"{another}; it {'stands for' if known.convert is None else 'is converted into'} this key:"
    try:
        result = known.convert(True) if known.convert is not None else AliasResult()
    except AliasValueError:
        result = AliasResult()
    if result.ignored or result.unsupported:
        what = "has no effect here" if result.ignored else "is not supported by Covey"
        return "", f"{another} for something that {what}: it is ignored, with a note."
    shows = command("config {name}=VALUE --diff", name=name)
    return "", f"{another}; what it sets depends on its value: `{shows}` shows it."


def _unknown(item: Written, more_names: Callable[[str], list[str]]) -> BadKeyError:
    """The error for an unknown key, with the nearest keys and aliases."""
    name, text = item.name, " is not a key that Covey knows."
    if item.delete and name in table():  # a key of another tool's that stands for none of Covey's
        return BadKeyError(name, " is another tool's name: ~ removes keys of Covey's.", item.sentence())
    if advice := meant(name):
        return BadKeyError(name, advice, item.sentence())
    try:
        check_known(name)
    except BadKeyError as problem:
        text = problem.text
        own = nearest(name)
        foreign = [other for other in _nearest_foreign(name) if table()[other].key not in own]
        more = [] if "." in name else more_names(name)
        group = name.removeprefix("+")
        if group in more and item.by == "recipe":
            return BadKeyError(name, f" is a group of options, not a key.{_choosing(group)}", item.sentence())
        more = [] if own else more
        if (foreign or more) and " is not a key" in text:
            likeness = {other: difflib.SequenceMatcher(None, name, other).ratio() for other in (*foreign, *more)}
            others = sorted(likeness, key=lambda other: -likeness[other])
            near = others + own if likeness[others[0]] > 0.9 else own + others
            text = f" is not a key that Covey knows.{did_you_mean(near[:3])}"
    return BadKeyError(name, text, item.sentence())


def _nearest_foreign(name: str) -> list[str]:
    found: dict[str, str] = {}
    for other in difflib.get_close_matches(name[:500], list(table()), n=6, cutoff=0.8):
        found.setdefault(table()[other].key or other, other)
    return list(found.values())


class _AliasResolver:
    """Resolves one source, key by key."""

    def __init__(
        self,
        written: Sequence[Written],
        canonical_values: dict[str, Any],
        label: str,
        strict: bool,
        more_names: Callable[[str], list[str]],
        references: Mapping[str, Any],
    ) -> None:
        self.written, self.label, self.strict, self.more_names = written, label, strict, more_names
        self.values = {item.name: item.value for item in written} | dict(references)
        self.result = Source(canonical_values=canonical_values)
        self.seen: dict[str, Written] = {}
        self.set_here: set[str] = set()
        self.ignored: list[str] = []
        self.unsupported: list[str] = []
        self.last: dict[CombinedConversion, Written] = {}

    def run(self) -> Source:
        for item in self.written:
            known = look_up(item.name)
            if (known is None or (item.typed and known.kind == ANYTHING)) and (
                advice := known_elsewhere(item.name, item.value)
            ):
                raise BadKeyError(item.name, advice, item.sentence())
            if known is None or (item.delete and not known.key):
                raise _unknown(item, self.more_names)
            self._one(item, known)
        for combine, item in self.last.items():
            try:
                result = combine(self.result.canonical_values, frozenset(self.set_here))
            except AliasValueError as problem:
                raise _bad_value(self.seen.get(problem.canonical, item), problem) from None
            self._add(result, item, native=False)
        order = {id(item): number for number, item in enumerate(self.written)}
        self.result.settings.sort(key=lambda setting: order[id(setting.written)])
        for names, what in ((self.ignored, "without effect here"), (self.unsupported, "not supported")):
            if names:
                self._note(f"{what}, ignored: {', '.join(dict.fromkeys(names))}")
        return self.result

    def _one(self, item: Written, known: Alias) -> None:
        if not known.native:
            self.result.foreign_names.append(item.name)
        if known.key and is_peers(item.name):
            self._note(f"{item.name} stands for {known.key}")
        if item.delete:
            self.result.settings.append(Setting(known.key, item.value, item, known.native))
            return
        # Aliases in ${name} become Covey's keys.
        value = item.value
        if known.convert is not None and isinstance(value, str) and (match := _REFERENCE.fullmatch(value)):
            value = self.values.get(match[1], value)
        value = _walk_texts(value, self._refer)
        if value is None and not known.native and "None" not in members(known.type):
            return  # other tools write null for what is not set
        if value != item.value and value == f"${{{known.key}}}":
            return  # another name of the same key
        self._record(item, known, value)
        try:
            result = AliasResult({known.key: value}) if known.convert is None else known.convert(value)
        except AliasValueError as problem:
            raise _bad_value(item, problem) from None
        self._add(result, item, known.native)
        if result.ignored:
            self.ignored.append(item.name)
        if result.unsupported:
            self.unsupported.append(f"{item.name}={show(value)}")

    def _record(self, item: Written, known: Alias, value: Any) -> None:
        name = known.canonical or known.key
        if not name:
            return
        before = self.seen.get(name)
        if known.canonical and known.canonical not in _SHARED and before is not None:
            self._must_agree(before, self.result.canonical_values[name], item, value, known.key)
        self.seen[name] = item
        if value is None:
            self.result.canonical_values.pop(name, None)
        else:
            self.result.canonical_values[name] = value
            self.set_here.add(name)
        if known.canonical in COMBINED:
            self.last.pop(COMBINED[known.canonical], None)
            self.last[COMBINED[known.canonical]] = item

    def _add(self, result: AliasResult, item: Written, native: bool) -> None:
        for key, value in result.values.items():
            self._set(Setting(key, value, item, native))
        only_implied = bool(result.implied) and not result.values
        for key, value in result.implied.items():
            self.result.settings.append(
                Setting(key, value, item, native, implied=True, note=result.note if only_implied else "")
            )
        self.result.choices += [replace(choice, origin=item.where or item.name) for choice in result.choices]
        if result.note and not only_implied:
            self._note(result.note if result.note.startswith("without") else f"{item.name}: {result.note}")

    def _set(self, new: Setting) -> None:
        if new.written.typed and new.key in _TEXTS and isinstance(new.value, str):
            new = replace(new, value=re.sub(r"\\?\\n", lambda found: "\n" if len(found[0]) == 2 else r"\n", new.value))
        for old in [found for found in self.result.settings if found.key == new.key]:
            if old.written.delete or old.implied:
                continue
            if new.key == _NONZERO_WINS and old.written.name != new.written.name and 0 in (old.value, new.value):
                if new.value == 0:
                    return
                self.result.settings.remove(old)
            elif self.strict or not (old.native or new.native):
                self._must_agree(old.written, old.value, new.written, new.value, new.key)
        self.result.settings.append(new)

    def _must_agree(self, old: Written, before: Any, new: Written, value: Any, key: str) -> None:
        names = (old.name, new.name)
        if names[0] == names[1] or None in (before, value) or _LAST_NAMED_WINS in names or _same(before, value):
            return
        both = f" (both set {key})" if key not in names else ""
        text = f"={show(new.value)} and {old.name}={show(old.value)} contradict each other{both}: keep one of them."
        raise BadKeyError(new.name, text, new.sentence())

    def _refer(self, text: str) -> str:
        def replace(match: re.Match[str]) -> str:
            known = look_up(match[1])
            if known is None or known.native:
                return match[0]
            if known.key and known.convert is None:
                return f"${{{known.key}}}"
            value = self.values.get(match[1])
            return str(value) if isinstance(value, str | int | float) else match[0]

        return _REFERENCE.sub(replace, text)

    def _note(self, text: str) -> None:
        if (line := f"{self.label}: {text}") not in self.result.notes:
            self.result.notes.append(line)


def _bad_value(item: Written, problem: AliasValueError) -> BadKeyError:
    return BadKeyError(item.name, f"={show(item.value)} {problem}", item.sentence())


def _walk_texts(value: Any, change: Any) -> Any:
    if isinstance(value, str):
        return change(value) if "${" in value else value
    if isinstance(value, Mapping):
        return {name: _walk_texts(inner, change) for name, inner in value.items()}
    return [_walk_texts(inner, change) for inner in value] if isinstance(value, list) else value


def _same(a: Any, b: Any) -> bool:
    """Whether two values mean the same, numbers written as text included."""
    if isinstance(a, DeferredValue) or isinstance(b, DeferredValue):
        return False
    texts = {str(a), str(b)}
    if a == b or len(texts) == 1 or {text.lower() for text in texts} in ({"true"}, {"false"}):
        return True
    try:
        return float(a) == float(b)
    except (TypeError, ValueError):
        return False
