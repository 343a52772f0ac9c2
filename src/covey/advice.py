"""Commands that a message proposes: a template and its values, so that each can be tried; what installs an extra."""

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


def install(extra: str) -> str:
    """The command that adds an extra to this installation of Covey: an editable clone, a folder, a wheel, a repository,
    or one from an index, as pip has recorded it (PEP 610)."""
    import json  # for this message alone
    import shutil
    import sys
    from importlib.metadata import PackageNotFoundError, distribution
    from importlib.util import find_spec
    from pathlib import Path
    from urllib.parse import unquote, urlsplit

    try:
        record = json.loads(distribution("covey").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        record = {}
    url, wanted = record.get("url", ""), f"covey[{extra}]"
    if "vcs_info" in record:
        wanted = f"{wanted} @ {record['vcs_info'].get('vcs', 'git')}+{url}"
    elif url.startswith("file:"):
        wanted = f"{unquote(urlsplit(url).path)}[{extra}]"
    editable = ["-e"] if record.get("dir_info", {}).get("editable") else []
    pip = [sys.executable, "-m", "pip"] if find_spec("pip") else ["uv", "pip"]
    if Path(shutil.which("pip") or "").parent == Path(sys.executable).parent:
        pip = ["pip"]
    return shlex.join([*pip, "install", *editable, wanted])
