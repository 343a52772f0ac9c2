"""From what the user wrote, in any spelling, to values of Covey's own keys."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from covey.config.keys import GROUPS, check_known, did_you_mean, nearest
from covey.config.landing import Implied, Landing, Later, Spelling, UnfitError
from covey.config.spelling import FOREIGN_GROUPS, look_up, table
from covey.config.together import TOGETHER, Together
from covey.config.values import BadKeyError, members, show

_REFERENCE = re.compile(r"(?<!\\)\$\{([A-Za-z_][\w.]*)\}")
_LAST_NAMED_WINS = "vllm_url"
_ZERO_GIVES_WAY = "training.warmup_steps"  # as in transformers, where only one of ratio and steps has an effect
_SHARED_FACTS = frozenset({"lora"})


@dataclass(frozen=True, slots=True)
class Said:
    """One key as the user wrote it."""

    spelling: str
    value: Any
    text: str = ""
    """How it stands on the command line, for messages; empty in a recipe."""
    delete: bool = False
    """Whether the key is taken away instead of set."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One of Covey's own keys, its value, and what it comes from."""

    key: str
    value: Any
    said: Said
    own: bool


@dataclass(slots=True)
class Translation:
    """What one source, the recipe or the command line, comes to."""

    settings: list[Setting] = field(default_factory=list)
    """In the order in which they were said."""
    implied: list[Implied] = field(default_factory=list)
    choices: list[tuple[str, str]] = field(default_factory=list)
    """Options of config groups."""
    implied_choices: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """What was said so far, this source and those before it."""
    now: set[str] = field(default_factory=set)
    """The facts that this source said."""

    @property
    def keys(self) -> set[str]:
        """The keys it sets or takes away."""
        return {setting.key for setting in self.settings}


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[Said]:
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
                    key, f"={show(value)} is no mapping: {key} is a group and holds keys.{_how(key, value)}"
                )
        yield Said(key, value)


def _how(group: str, value: Any) -> str:
    """How an option of a group is chosen, for somebody who wrote its name in the group's place."""
    if not isinstance(value, str) or "." in group or group in FOREIGN_GROUPS:
        return ""
    return f" An option is chosen with `{group}=NAME` on the command line, or `defaults: [override /{group}: NAME]`."


def translate(said: Sequence[Said], earlier: Mapping[str, Any], label: str, strict: bool) -> Translation:
    """Translate one source.

    Args:
        said: its keys in order.
        earlier: the facts that sources before it said.
        label: its name, for notes.
        strict: whether two spellings of one fact must agree whatever they are; on the command line, where the later
            word wins, only two foreign ones must.

    Raises:
        BadKeyError: an unknown key, a value that a spelling cannot have, or two spellings that disagree. Its key is
            the user's own spelling.
    """
    return _Translator(said, dict(earlier), label, strict).run()


def unknown(name: str) -> BadKeyError:
    """The error for a key that nobody knows, with the nearest ones in any spelling."""
    try:
        check_known(name)
    except BadKeyError as problem:
        own = nearest(name)
        foreign = [other for other in _nearest_foreign(name) if table()[other].key not in own]
        if foreign and " is not a key" in problem.text:
            near = (foreign + own if difflib.SequenceMatcher(None, name, foreign[0]).ratio() > 0.9 else own + foreign)[
                :3
            ]
            return BadKeyError(name, f" is not a key that Covey knows.{did_you_mean(near)}")
        return problem
    return BadKeyError(name, " is not a key that Covey knows.")


def _nearest_foreign(name: str) -> list[str]:
    found: dict[str, str] = {}
    for other in difflib.get_close_matches(name, list(table()), n=6, cutoff=0.8):
        found.setdefault(table()[other].key or other, other)
    return list(found.values())


class _Translator:
    """Goes through one source, key by key."""

    def __init__(self, said: Sequence[Said], facts: dict[str, Any], label: str, strict: bool) -> None:
        self.said, self.label, self.strict = said, label, strict
        self.written = {item.spelling: item.value for item in said}
        self.result = Translation(facts=facts)
        self.spoken: dict[str, Said] = {}
        self.ignored: list[str] = []
        self.not_done: list[str] = []
        self.last: dict[Together, Said] = {}

    def run(self) -> Translation:
        for item in self.said:
            known = look_up(item.spelling)
            if known is None:
                raise unknown(item.spelling)
            self._one(item, known)
        for together, item in self.last.items():
            try:
                landing = together(self.result.facts, frozenset(self.result.now))
            except UnfitError as problem:
                raise self._unfit(self.spoken.get(problem.fact, item), problem) from None
            self._land(landing, item, own=False)
        order = {id(item): number for number, item in enumerate(self.said)}
        self.result.settings.sort(key=lambda setting: order[id(setting.said)])
        self._note_idle()
        return self.result

    def _one(self, item: Said, known: Spelling) -> None:
        if item.delete:
            if known.convert is not None and not known.key:
                raise unknown(item.spelling)
            self.result.settings.append(Setting(known.key, item.value, item, known.own))
            return
        value = self._with_references(item, known)
        if value is None and not known.own and "None" not in members(known.type):
            return  # other tools write null for what is not set
        self._note_fact(item, known, value)
        try:
            landing = Landing({known.key: value}) if known.convert is None else known.convert(value)
        except UnfitError as problem:
            raise self._unfit(item, problem) from None
        self._land(landing, item, known.own)
        if landing.ignored:
            self.ignored.append(item.spelling)
        if landing.not_done:
            self.not_done.append(f"{item.spelling}={show(value)}")

    def _note_fact(self, item: Said, known: Spelling, value: Any) -> None:
        fact = known.fact or known.key
        if not fact:
            return
        before = self.spoken.get(fact)
        if known.fact and known.fact not in _SHARED_FACTS and before is not None:
            self._must_agree(before, self.result.facts[fact], item, value, known.key)
        self.spoken[fact] = item
        if value is None:
            self.result.facts.pop(fact, None)
        else:
            self.result.facts[fact] = value
            self.result.now.add(fact)
        if known.fact in TOGETHER:
            self.last.pop(TOGETHER[known.fact], None)
            self.last[TOGETHER[known.fact]] = item

    def _land(self, landing: Landing, item: Said, own: bool) -> None:
        for key, value in landing.values.items():
            self._set(Setting(key, value, item, own))
        self.result.implied += landing.implied
        self.result.choices += [landing.choice] if landing.choice else []
        self.result.implied_choices += [landing.implied_choice] if landing.implied_choice else []
        if landing.note:
            self._note(landing.note if landing.note.startswith("without") else f"{item.spelling}: {landing.note}")

    def _set(self, new: Setting) -> None:
        for old in [found for found in self.result.settings if found.key == new.key and not found.said.delete]:
            if new.key == _ZERO_GIVES_WAY and old.said.spelling != new.said.spelling and 0 in (old.value, new.value):
                if new.value == 0:
                    return
                self.result.settings.remove(old)
            elif self.strict or not (old.own or new.own):
                self._must_agree(old.said, old.value, new.said, new.value, new.key)
        self.result.settings.append(new)

    def _must_agree(self, old: Said, before: Any, new: Said, value: Any, key: str) -> None:
        names = (old.spelling, new.spelling)
        if names[0] == names[1] or None in (before, value) or _LAST_NAMED_WINS in names or _same(before, value):
            return
        raise BadKeyError(
            new.spelling,
            f"={show(new.value)} and {old.spelling}={show(old.value)} say different things of one fact"
            f"{f', {key}' if key not in names else ''}: keep one of them.",
        )

    def _with_references(self, item: Said, known: Spelling) -> Any:
        """The value, with `${name}` of a foreign name made into the key it stands for."""
        value = item.value
        if known.convert is not None and isinstance(value, str) and (match := _REFERENCE.fullmatch(value)):
            value = self.written.get(match[1], value)
        return _walk_texts(value, self._refer)

    def _refer(self, text: str) -> str:
        def replace(match: re.Match[str]) -> str:
            known = look_up(match[1])
            if known is None or known.own or match[1] not in self.written:
                return match[0]
            value = self.written[match[1]]
            if known.key and known.convert is None:
                return f"${{{known.key}}}"
            return str(value) if isinstance(value, str | int | float) else match[0]

        return _REFERENCE.sub(replace, text)

    def _unfit(self, item: Said, problem: UnfitError) -> BadKeyError:
        return BadKeyError(item.spelling, f"={show(item.value)} {problem}")

    def _note(self, text: str) -> None:
        if (line := f"{self.label}: {text}") not in self.result.notes:
            self.result.notes.append(line)

    def _note_idle(self) -> None:
        if self.ignored:
            self._note(f"without effect here, ignored: {', '.join(dict.fromkeys(self.ignored))}")
        if self.not_done:
            self._note(f"asked for, but not something that Covey does: {', '.join(dict.fromkeys(self.not_done))}")


def _walk_texts(value: Any, change: Any) -> Any:
    if isinstance(value, str):
        return change(value) if "${" in value else value
    if isinstance(value, Mapping):
        return {name: _walk_texts(inner, change) for name, inner in value.items()}
    return [_walk_texts(inner, change) for inner in value] if isinstance(value, list) else value


def _same(a: Any, b: Any) -> bool:
    """Whether two values mean the same, numbers written as text included."""
    if isinstance(a, Later) or isinstance(b, Later):
        return False
    texts = {str(a), str(b)}
    if a == b or len(texts) == 1 or {text.lower() for text in texts} in ({"true"}, {"false"}):
        return True
    try:
        return float(a) == float(b)
    except (TypeError, ValueError):
        return False
