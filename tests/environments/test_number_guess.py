"""The game: replies, rewards by hand, seeds and columns of the row."""

from __future__ import annotations

import math
import random

import pytest

from covey.environments.library import NumberGuess


def test_a_game_that_is_won() -> None:
    game = NumberGuess(low=1, high=100, guesses=3)
    assert "from 1 to 100" in game.reset(secret=42)
    assert game.guess(50) == "The number is lower than 50. 2 guesses left."
    assert game.guess(40) == "The number is higher than 40. 1 guess left."
    assert game.guess(42) == "42 is right. The game is over."
    assert game.get_reward() == 1.0
    assert game.guess(42) == "The game is over."


def test_a_game_that_is_lost_is_worth_what_was_found_out() -> None:
    game = NumberGuess(low=1, high=16, guesses=2)
    game.reset(secret=3)
    assert game.get_reward() == 0.0
    game.guess(9)  # 1 to 8 are left: one of four bits
    assert game.get_reward() == pytest.approx(0.5 / 4)
    game.guess(16)  # nothing new
    assert game.get_reward() == pytest.approx(0.5 / 4)
    assert game.guess(3) == "The game is over."


def test_the_last_guess_tells_the_number() -> None:
    game = NumberGuess(guesses=1)
    game.reset(secret=7)
    assert game.guess(5) == "The number is higher than 5. No guess is left, it was 7."
    assert game.get_reward() == pytest.approx(0.5 * (1 - math.log(95) / math.log(100)))


def test_seeds_decide() -> None:
    def secrets(seed: int) -> list[int]:
        game, found = NumberGuess(guesses=1), []
        random.seed(seed)
        for _ in range(5):
            game.reset()
            found.append(next(n for n in range(1, 101) if _is_secret(game, n)))
        return found

    assert secrets(1) == secrets(1)
    assert secrets(1) != secrets(2)
    assert all(1 <= secret <= 100 for secret in secrets(3))


def _is_secret(game: NumberGuess, number: int) -> bool:
    return game._secret == number


def test_a_row_overrides_the_settings() -> None:
    game = NumberGuess()
    assert "from 5 to 9" in game.reset(low=5, high=9, guesses=1, secret="6", prompt=[], answer=None)
    assert game.guess("6.0") == "6 is right. The game is over."  # type: ignore[arg-type]
    assert "from 1 to 100. " in game.reset(low=None)


@pytest.mark.parametrize("number", ["many", None, 2.5, float("nan"), float("inf"), [1]])
def test_what_is_no_number_is_refused_and_costs_no_guess(number: object) -> None:
    game = NumberGuess(guesses=1)
    game.reset(secret=2)
    with pytest.raises(ValueError, match="is not a whole number"):
        game.guess(number)  # type: ignore[arg-type]
    assert game.guess(2).startswith("2 is right")


@pytest.mark.parametrize("settings", [{"low": 5, "high": 5}, {"guesses": 0}])
def test_impossible_settings(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        NumberGuess(**settings)


@pytest.mark.parametrize("row", [{"secret": 101}, {"low": 9, "high": 1}, {"secret": "x"}])
def test_impossible_rows(row: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"secret|must be|whole"):
        NumberGuess().reset(**row)
