"""A game of several turns: find a hidden number by guessing; the replies say higher or lower."""

from __future__ import annotations

import math
import random
from typing import Any


class NumberGuess:
    """Find a hidden whole number. The reward is 1 for finding it, and up to 0.5 for narrowing it down.

    A column `secret` of the row is the hidden number; without one it is drawn from `random`, whose seed the trainer
    sets. Columns `low`, `high` and `guesses` override the settings.
    """

    def __init__(self, low: int = 1, high: int = 100, guesses: int = 8) -> None:
        """Set the rules.

        Args:
            low: Smallest hidden number.
            high: Largest hidden number.
            guesses: Guesses per game; 7 suffice for 100 numbers.

        Raises:
            ValueError: there is nothing to guess, or no guess.
        """
        _check(low, high, guesses)
        self._settings = {"low": low, "high": high, "guesses": guesses}
        self._low, self._high, self._left = low, high, guesses
        self._least, self._most = low, high
        self._secret, self._found = low, False

    def reset(self, **row: Any) -> str:
        """Hide a number and tell the model the rules."""
        low, high, guesses = (_whole(row[n] if row.get(n) is not None else v) for n, v in self._settings.items())
        _check(low, high, guesses)
        secret = random.randint(low, high) if row.get("secret") is None else _whole(row["secret"])
        if not low <= secret <= high:
            raise ValueError(f"secret={secret} is not between low={low} and high={high}")
        self._low, self._high, self._left = low, high, guesses
        self._least, self._most = low, high
        self._secret, self._found = secret, False
        return (
            f"I have hidden a whole number from {self._low} to {self._high}. Find it with the tool guess. You have "
            f"{self._left} guesses; each reply says whether the hidden number is higher or lower."
        )

    def guess(self, number: int) -> str:
        """Guess the hidden number.

        Args:
            number: The guess.

        Returns:
            Whether the hidden number is higher or lower, or the guess is right.
        """
        if self._found or not self._left:
            return "The game is over."
        guessed = _whole(number)
        self._left -= 1
        if guessed == self._secret:
            self._found = True
            return f"{guessed} is right. The game is over."
        if guessed < self._secret:
            self._least = max(self._least, guessed + 1)
        else:
            self._most = min(self._most, guessed - 1)
        hint = f"The number is {'higher' if guessed < self._secret else 'lower'} than {guessed}."
        left = f"{self._left} guess{'es' * (self._left > 1)} left" if self._left else "No guess is left"
        return f"{hint} {left}{'.' if self._left else f', it was {self._secret}.'}"

    def get_reward(self) -> float:
        """1 for the number; else half the share of the information found: 1 minus the ratio of the logarithms of how
        many numbers were still possible at the end and at the start."""
        if self._found:
            return 1.0
        everything = self._high - self._low + 1
        return 0.5 * (1 - math.log(self._most - self._least + 1) / math.log(everything))


def _check(low: int, high: int, guesses: int) -> None:
    if low >= high:
        raise ValueError(f"low={low} must be below high={high}")
    if guesses < 1:
        raise ValueError(f"guesses={guesses} must be at least 1")


def _whole(value: Any) -> int:
    """A whole number, also as models and data write it: 5, 5.0, "5"."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{value!r} is not a whole number") from None
    if not number.is_integer():
        raise ValueError(f"{value!r} is not a whole number")
    return int(value) if isinstance(value, int) else int(number)
