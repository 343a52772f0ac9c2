"""Commands that a message proposes: a template and its values, so that each can be tried."""

from __future__ import annotations

import re
import shlex


def command(template: str, /, *more: object, **values: object) -> str:
    """A `covey` command for a message, as a shell reads it.

    Args:
        template: the words after `covey`, a literal, which a test finds and tries; FILE and its like are the reader's.
        more: further words.
        values: what `{name}` stands for; quoted where the shell needs it, and after `=` where an override does.
    """
    shown = {}
    for name, text in ((name, str(value)) for name, value in values.items()):
        plain = f"={{{name}}}" not in template or re.fullmatch(r"[\w./:@%+ -]*", text, re.ASCII)
        shown[name] = shlex.quote(text if plain else '"' + text.replace('"', '\\"') + '"')
    return " ".join(filter(None, ["covey", template.format(**shown), *(shlex.quote(str(word)) for word in more)]))
