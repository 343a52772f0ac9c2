"""Secrets: which keys and texts hold them, and how they are redacted.

Used for configs, logs, messages, `environment.json` and the output of commands. A value is a secret by its key
(`hub_token`), by the environment (the value of `HF_TOKEN` or another variable with such a name), or by its shape
(`hf_…`).
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

HIDDEN = "***"
"""Replaces a secret."""

VARIABLE = "COVEY_SECRETS"
"""Environment variable by which a launcher passes the secrets of a config to its processes, since the config file holds
none. JSON, by dotted key."""

ENGINE_KEY = "COVEY_ENGINE_KEY"
"""Environment variable with the API key of Covey's vLLM server, read by the server and the trainer."""

RUN_KEY = "COVEY_RUN_KEY"
"""Environment variable by which Ray's driver passes that key to the launchers of a run."""

_DISTINCT = re.compile(r".{16,}|(?=.*\d)(?=.*[A-Za-z]).{8,}", re.DOTALL)
"""Values of secret variables that are redacted elsewhere. Shorter ones, such as `offline`, are ordinary words."""

_KEY = re.compile(
    r"""(?:^|[_.\-])(?:
        (?:api|access|secret|private|encryption|signing|account|ssh|wandb|kaggle|engine)[_\-]?key(?:[_\-]id)?
      | pass(?:word|wd|phrase) | secrets? | credentials? | authorization | jwt | cookie | connection[_\-]?string
    )$""",
    re.IGNORECASE | re.VERBOSE,
)
_TOKEN = re.compile(r"(?:^|[_.\-])token$", re.IGNORECASE)
_SPECIAL = re.compile(
    r"""(?:^|[_.\-])(?:pad|eos|bos|unk|sep|cls|mask|image|video|audio|vision|boi|eoi|boa|eoa|start|end|stop|new|next|
        last|first|special|additional|think|thinking|answer|tool|fim|prefix|suffix|middle|extra|added|forced|
        unconditional|pad_to|content|single|per|each|every|by|of|to|response|num|max|min)[_\-]?token$""",
    re.IGNORECASE | re.VERBOSE,
)
"""Keys of tokenizers, which hold tokens of text."""
_VARIABLE = re.compile(r"(?:PASSWORD|(?<!OLD)PWD|_PASS|_KEYS?|_PAT|TOKENS|WEBHOOK_URL|DATABASE_URL)$")
"""Further names, of environment variables only."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_SHAPES = re.compile(
    r"""(?<![A-Za-z0-9])(?:
        (?:hf|api_org)_(?:[A-Za-z0-9]{30,}|(?=[a-z0-9]*[A-Z])[A-Za-z0-9]{16,})  # Hugging Face
      | sk-(?:(?:proj|ant|or|svcacct|admin)-[\w\-]{16,}|[A-Za-z0-9]{20,})      # OpenAI, Anthropic and others
      | gh[opusr]_[A-Za-z0-9]{20,} | github_pat_\w{20,} | glpat-[\w\-]{16,}
      | (?:AKIA|ASIA)[A-Z0-9]{16} | AIza[\w\-]{30,}                # AWS, Google
      | xox[abeprs]-[\w\-]{10,} | nvapi-[\w\-]{20,} | pypi-[\w\-]{40,} | wandb_v\d_\w{20,} | gsk_\w{20,}
      | eyJ[\w\-]{8,800}\.[\w\-]{8,4000}\.[\w\-]{4,}                      # JSON web tokens
      | -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----[\s\S]*?(?:-----END\ [A-Z ]*PRIVATE\ KEY-----|$)
    )""",
    re.VERBOSE,
)
_IN_ADDRESS = re.compile(r"(?<=://)[^\s/@'\"]+(?=@)")
_IN_QUERY = re.compile(r"(?i)([?&][\w\-]*(?:token|key|secret|password|signature)=)[^\s&#'\"]+")
_BEARER = re.compile(
    r"""(?i)(\bbearer[ \t]+|\bauthorization["']?[ \t]*[:=][ \t]*["']?(?:basic|token)[ \t]+)[A-Za-z0-9._~+/\-]{12,}=*"""
)
_ASSIGNED = re.compile(
    r"""(?P<key>(?<![\w.\-])(?:--)?[A-Za-z_][\w.\-]*)
        (?P<sep>["']?\s*=\s*|["']?:\s*)
        (?!\\?\$\{)(?P<value>"[^"\n]*"|'[^'\n]*'|[^\s'"`,{}\[\]()]+)""",
    re.VERBOSE,
)
_BRACKETED = re.compile(
    r"""(?P<key>(?<![\w.\-])(?:--)?[A-Za-z_][\w.\-]*)(?P<sep>["']?\s*[=:]\s*)(?P<value>\[[^\[\]\n]*\]|\{[^{}\n]*\})"""
)
_FLAG = re.compile(
    r"""(?P<key>(?<![\w.\-])--[A-Za-z_][\w.\-]*)(?P<sep>\s+)(?P<value>"[^"\n]*"|'[^'\n]*'|[^\s'"`\-][^\s`]*)"""
)
_SHELL = frozenset({"setup", "options", "launch.slurm.setup", "launch.slurm.options"})
"""Keys whose values are shell commands."""
_NOTHING = frozenset({"", "null", "none", "true", "false", HIDDEN})


@lru_cache(maxsize=4096)
def is_secret_key(key: str) -> bool:
    """Whether a key or environment variable of this name holds a secret. The tokens of a tokenizer are none."""
    name = _CAMEL.sub("_", key.rpartition(".")[2])
    if _KEY.search(name):
        return True
    return bool(_TOKEN.search(name)) and not _SPECIAL.search(name)


def redact_known(text: str) -> str:
    """The text with the values of secret variables, and texts of a secret's shape, replaced by `***`.

    For values of a config: a prompt may contain "token: …".
    """
    secret = ((name, value) for name, value in os.environ.items() if is_secret_key(name) or _VARIABLE.search(name))
    for value in _values(tuple(value for _, value in secret if _DISTINCT.fullmatch(value))):
        text = text.replace(value, HIDDEN)
    text = _SHAPES.sub(HIDDEN, text)
    return _IN_QUERY.sub(rf"\1{HIDDEN}", _IN_ADDRESS.sub(HIDDEN, text)) if "://" in text else text


def redact(text: str) -> str:
    """The text of a log, a message or a command with every secret replaced by `***`, also after a secret's key."""
    text = redact_known(text)
    text = _BEARER.sub(rf"\1{HIDDEN}", text)
    text = _ASSIGNED.sub(_hide_assigned, _BRACKETED.sub(_hide_assigned, text))
    return _FLAG.sub(_hide_assigned, text) if "--" in text else text


def redact_words(words: Sequence[str]) -> list[str]:
    """The words of a command line with every secret replaced by `***`: `--hub_token VALUE` and `hub_token=VALUE`."""
    found = [redact(word) for word in words]
    for at in range(len(words) - 1):
        flag = words[at]
        if flag.startswith("--") and "=" not in flag and is_secret_key(flag.replace("-", "_")):
            found[at + 1] = HIDDEN
    return found


def without_words(words: Sequence[str]) -> list[str]:
    """The words of a command line, redacted and without those that set a secret key, which `for_children` passes on."""
    found: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        name, equals, _ = word.partition("=")
        if is_secret_key(name.lstrip("+~-").replace("-", "_")):
            if name.startswith("--") and not equals and left:
                left.pop(0)
            continue
        found.append(redact(word))
    return found


def redact_value(key: str, value: Any) -> Any:
    """The value of a key for display, with secrets replaced by `***` at every level."""
    if isinstance(value, str):
        if value and is_secret_key(key):
            return HIDDEN
        return redact(value) if key in _SHELL else redact_known(value)
    if isinstance(value, Mapping):
        return {name: redact_value(key if is_secret_key(key) else str(name), inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(redact_value(key, inner) for inner in value)
    return value


def without_secrets(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values for a file: secret keys are left out, other texts redacted."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if is_secret_key(str(name)) and redact_value(str(name), value) != value:
            continue
        found[name] = without_secrets(value) if isinstance(value, Mapping) else redact_value(str(name), value)
    return found


def for_children(values: Mapping[str, Any]) -> dict[str, str]:
    """The environment variables that a process needs besides the file of these values.

    Args:
        values: the config's values by dotted key; those of `launch` are for the launcher only.
    """
    found = {key: value for key, value in values.items() if not key.startswith("launch.")}
    secrets = {key: value for key, value in found.items() if without_secrets({key: value}) != {key: value}}
    return {VARIABLE: json.dumps(secrets)} if secrets else {}


def job_variable(variable: str, number: int) -> str:
    """The variable in which a sweep keeps a variable of `for_children` for one of its jobs."""
    return f"{variable}_{number}"


def environment_of_job(number: int) -> dict[str, str]:
    """The environment of a sweep's job, with its own secrets only."""
    own = os.environ.get(job_variable(VARIABLE, number))
    found = {name: value for name, value in os.environ.items() if not name.startswith(VARIABLE)}
    return found if own is None else {**found, VARIABLE: own}


@cache
def from_launcher() -> Mapping[str, Any]:
    """The secrets passed to this process by a launcher, by dotted key; removed from the environment of its children."""
    return dict(json.loads(os.environ.pop(VARIABLE, "{}")))


class RedactingFormatter(logging.Formatter):
    """Formats log records without their secrets."""

    def format(self, record: logging.LogRecord) -> str:
        """As `logging.Formatter`, tracebacks included."""
        return redact(super().format(record))


@cache
def _values(found: tuple[str, ...]) -> tuple[str, ...]:
    """The values to redact, longer ones first, since one may contain another. Not numbers, nor paths of key files."""
    usable = {
        value for value in found if value.lower() not in _NOTHING and not value.isdigit() and value[0] not in "/~"
    }
    return tuple(sorted(usable, key=len, reverse=True))


def _hide_assigned(match: re.Match[str]) -> str:
    key, separator, value = match["key"], match["sep"], match["value"]
    bare = value.strip("'\"")
    if not is_secret_key(key.lstrip("-").replace("-", "_")) or bare.lower() in _NOTHING:
        return match[0]
    quote = value[0] if value[0] in "'\"" else ""
    return f"{key}{separator}{quote}{HIDDEN}{quote}"
