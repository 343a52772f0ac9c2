"""Deciding whether a prediction answers the gold answer, as a typed outcome."""

from __future__ import annotations

import re
from decimal import Decimal
from enum import StrEnum

from covey.answers.extract import extract_answer_tag

_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d*)?", re.ASCII)
_DOLLAR = re.compile(r"^([+-]?)\$ ?")  # `$5`, `-$5`; a sign after the dollar is the number's own
_MAX_LENGTH = 200  # a longer "number" is a runaway completion; comparing it as text is enough


class Outcome(StrEnum):
    """What became of one completion's grading."""

    RIGHT = "right"
    WRONG = "wrong"
    UNPARSABLE_PREDICTION = "unparsable_prediction"


def canonical_number(text: str) -> str:
    """A spelling-independent form: `1,334`, `+1334`, `1334.0`, `1334.` and `$1334` all become `1334`.

    Text that is not one plain decimal number is returned with its white space folded, otherwise as it is.
    """
    folded = " ".join(text.split())
    bare = _DOLLAR.sub(r"\1", folded.replace("\N{MINUS SIGN}", "-"))
    if len(bare) > _MAX_LENGTH or not any(c.isdigit() for c in bare) or not _NUMBER.fullmatch(bare):
        return folded
    plain = format(Decimal(bare.replace(",", "")), "f")
    if "." in plain:
        plain = plain.rstrip("0").rstrip(".")
    return "0" if plain in ("-0", "") else plain


def grade_exact(completion: str, gold: str) -> Outcome:
    """Compare the last `<answer>…</answer>` of a completion with the gold answer, numbers in canonical form."""
    predicted = extract_answer_tag(completion)
    if predicted is None:
        return Outcome.UNPARSABLE_PREDICTION
    return Outcome.RIGHT if canonical_number(predicted) == canonical_number(gold) else Outcome.WRONG
