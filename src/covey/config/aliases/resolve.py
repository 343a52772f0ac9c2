"""From what the user wrote, aliases included, to values of Covey's own keys."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from covey.config.aliases.alias_result import Alias, AliasResult, AliasValueError, DeferredValue, ImpliedValue
from covey.config.aliases.aliases import FOREIGN_GROUPS, look_up, table
from covey.config.aliases.combined import COMBINED, CombinedConversion
from covey.config.keys import GROUPS, check_known, did_you_mean, nearest
from covey.config.values import BadKeyError, members, show

_REFERENCE = re.compile(r"(?<!\\)\$\{([A-Za-z_][\w.]*)\}")
_LAST_NAMED_WINS = "vllm_url"
_NONZERO_WINS = "training.warmup_steps"  # as in transformers, where only one of ratio and steps has an effect
_SHARED = frozenset({"lora"})  # canonical names of several aliases, which need not agree


@dataclass(frozen=True, slots=True)
class UserSetting:
    """One key as the user wrote it."""

    name: str
    value: Any
    text: str = ""
    """Its text on the command line, for messages; empty in a recipe."""
    delete: bool = False
    """Whether the key is removed instead of set."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One of Covey's own keys, its value, and the user setting it comes from."""

    key: str
    value: Any
    written: UserSetting
    native: bool
    """Whether it was written under Covey's own key."""


@dataclass(slots=True)
class ResolvedSettings:
    """What one source, the recipe or the command line, sets."""

    settings: list[Setting] = field(default_factory=list)
    """In the order written."""
    implied: list[ImpliedValue] = field(default_factory=list)
    choices: list[tuple[str, str]] = field(default_factory=list)
    """Options of config groups."""
    implied_choices: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    canonical_values: dict[str, Any] = field(default_factory=dict)
    """Set so far, by this source and those before it; by canonical name."""
    set_here: set[str] = field(default_factory=set)
    """Names of the canonical values that this source sets."""
    foreign: bool = False
    """Whether any key is another tool's."""

    @property
    def keys(self) -> set[str]:
        """The keys it sets or removes."""
        return {setting.key for setting in self.settings}


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[UserSetting]:
    """Every key of a nested mapping that takes a value, by its dotted name.

    Raises:
        BadKeyError: a dotted key inside a group, or a group that holds no keys.
    """
    for name, value in values.items():
        key = f"{prefix}{name}"
        if prefix and "." in str(name):
            raise BadKeyError(key, " is dotted; only a recipe's top level may be.")
        if key in GROUPS or key in FOREIGN_GROUPS:
            if isinstance(value, Mapping):
                yield from leaves(value, f"{key}.")
                continue
            if value is None:
                continue
            known = look_up(key)
            if known is None or known.convert is None:
                raise BadKeyError(
                    key, f"={show(value)} is not a mapping: {key} is a group and holds keys.{_how(key, value)}"
                )
        yield UserSetting(key, value)


def _how(group: str, value: Any) -> str:
    """How to choose an option of a group, when its name was given as the group's value."""
    if not isinstance(value, str) or "." in group or group in FOREIGN_GROUPS:
        return ""
    return f" An option is chosen with `{group}=NAME` on the command line, or `defaults: [override /{group}: NAME]`."


def resolve_aliases(
    settings: Sequence[UserSetting], earlier: Mapping[str, Any], label: str, strict: bool
) -> ResolvedSettings:
    """Resolve the aliases of one source.

    Args:
        settings: its keys in order.
        earlier: the canonical values of the sources before it.
        label: its name, for notes.
        strict: whether any two settings of one key must agree; on the command line, where the later word wins, only
            two aliases must.

    Raises:
        BadKeyError: an unknown key, a value that an alias cannot have, or two settings that disagree. It names the
            key as the user wrote it.
    """
    return _AliasResolver(settings, dict(earlier), label, strict).run()


def unknown(name: str) -> BadKeyError:
    """The error for an unknown key, with the nearest keys and aliases."""
    try:
        check_known(name)
    except BadKeyError as problem:
        own = nearest(name)
        foreign = [other for other in _nearest_foreign(name) if table()[other].key not in own]
        if foreign and " is not a key" in problem.text:
            close = difflib.SequenceMatcher(None, name, foreign[0]).ratio() > 0.9
            near = foreign + own if close else own + foreign
            return BadKeyError(name, f" is not a key that Covey knows.{did_you_mean(near[:3])}")
        return problem
    return BadKeyError(name, " is not a key that Covey knows.")


def _nearest_foreign(name: str) -> list[str]:
    found: dict[str, str] = {}
    for other in difflib.get_close_matches(name[:500], list(table()), n=6, cutoff=0.8):
        found.setdefault(table()[other].key or other, other)
    return list(found.values())


class _AliasResolver:
    """Resolves one source, key by key."""

    def __init__(
        self, settings: Sequence[UserSetting], canonical_values: dict[str, Any], label: str, strict: bool
    ) -> None:
        self.settings, self.label, self.strict = settings, label, strict
        self.written = {item.name: item.value for item in settings}
        self.result = ResolvedSettings(canonical_values=canonical_values)
        self.seen: dict[str, UserSetting] = {}
        self.ignored: list[str] = []
        self.unsupported: list[str] = []
        self.last: dict[CombinedConversion, UserSetting] = {}

    def run(self) -> ResolvedSettings:
        for item in self.settings:
            known = look_up(item.name)
            if known is None:
                raise unknown(item.name)
            self._one(item, known)
        for combine, item in self.last.items():
            try:
                result = combine(self.result.canonical_values, frozenset(self.result.set_here))
            except AliasValueError as problem:
                raise self._bad_value(self.seen.get(problem.canonical, item), problem) from None
            self._add(result, item, native=False)
        order = {id(item): number for number, item in enumerate(self.settings)}
        self.result.settings.sort(key=lambda setting: order[id(setting.written)])
        self._note_ignored()
        return self.result

    def _one(self, item: UserSetting, known: Alias) -> None:
        self.result.foreign |= not known.native
        if item.delete:
            if known.convert is not None and not known.key:
                raise unknown(item.name)
            self.result.settings.append(Setting(known.key, item.value, item, known.native))
            return
        value = self._with_references(item, known)
        if value is None and not known.native and "None" not in members(known.type):
            return  # other tools write null for what is not set
        self._record(item, known, value)
        try:
            result = AliasResult({known.key: value}) if known.convert is None else known.convert(value)
        except AliasValueError as problem:
            raise self._bad_value(item, problem) from None
        self._add(result, item, known.native)
        if result.ignored:
            self.ignored.append(item.name)
        if result.unsupported:
            self.unsupported.append(f"{item.name}={show(value)}")

    def _record(self, item: UserSetting, known: Alias, value: Any) -> None:
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
            self.result.set_here.add(name)
        if known.canonical in COMBINED:
            self.last.pop(COMBINED[known.canonical], None)
            self.last[COMBINED[known.canonical]] = item

    def _add(self, result: AliasResult, item: UserSetting, native: bool) -> None:
        for key, value in result.values.items():
            self._set(Setting(key, value, item, native))
        self.result.implied += result.implied
        self.result.choices += [result.choice] if result.choice else []
        self.result.implied_choices += [result.implied_choice] if result.implied_choice else []
        if result.note:
            self._note(result.note if result.note.startswith("without") else f"{item.name}: {result.note}")

    def _set(self, new: Setting) -> None:
        for old in [found for found in self.result.settings if found.key == new.key and not found.written.delete]:
            if new.key == _NONZERO_WINS and old.written.name != new.written.name and 0 in (old.value, new.value):
                if new.value == 0:
                    return
                self.result.settings.remove(old)
            elif self.strict or not (old.native or new.native):
                self._must_agree(old.written, old.value, new.written, new.value, new.key)
        self.result.settings.append(new)

    def _must_agree(self, old: UserSetting, before: Any, new: UserSetting, value: Any, key: str) -> None:
        names = (old.name, new.name)
        if names[0] == names[1] or None in (before, value) or _LAST_NAMED_WINS in names or _same(before, value):
            return
        raise BadKeyError(
            new.name,
            f"={show(new.value)} and {old.name}={show(old.value)} contradict each other"
            f"{f' (both set {key})' if key not in names else ''}: keep one of them.",
        )

    def _with_references(self, item: UserSetting, known: Alias) -> Any:
        """The value, with aliases in `${name}` replaced by Covey's keys."""
        value = item.value
        if known.convert is not None and isinstance(value, str) and (match := _REFERENCE.fullmatch(value)):
            value = self.written.get(match[1], value)
        return _walk_texts(value, self._refer)

    def _refer(self, text: str) -> str:
        def replace(match: re.Match[str]) -> str:
            known = look_up(match[1])
            if known is None or known.native or match[1] not in self.written:
                return match[0]
            value = self.written[match[1]]
            if known.key and known.convert is None:
                return f"${{{known.key}}}"
            return str(value) if isinstance(value, str | int | float) else match[0]

        return _REFERENCE.sub(replace, text)

    def _bad_value(self, item: UserSetting, problem: AliasValueError) -> BadKeyError:
        return BadKeyError(item.name, f"={show(item.value)} {problem}")

    def _note(self, text: str) -> None:
        if (line := f"{self.label}: {text}") not in self.result.notes:
            self.result.notes.append(line)

    def _note_ignored(self) -> None:
        if self.ignored:
            self._note(f"without effect here, ignored: {', '.join(dict.fromkeys(self.ignored))}")
        if self.unsupported:
            self._note(f"not supported, ignored: {', '.join(dict.fromkeys(self.unsupported))}")


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
