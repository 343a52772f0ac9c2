"""Environments as users write them, in a file of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from covey.environments.contract import EnvironmentSource

GAMES = '''
"""Environments as written for TRL; the annotations of the first are text."""
from __future__ import annotations
import random
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Optional, Union
import time
import numpy

class Colour(Enum):
    RED = "red"
    BLUE = "blue"

RNG = random.Random(0)

class Base:
    """What games share."""

    shared = numpy.random.default_rng(0)

    def reset(self, **row) -> str | None:
        """Begin.

        Args:
            row: The row.
        """
        self.row = row
        self.values = [random.random(), float(numpy.random.random())]
        self.held = [RNG.random(), float(self.shared.random()), self.rng.random(), self.state.random()]
        return None

    def inherited(self, flag: bool = True) -> bool:
        """Be inherited.

        Args:
            flag: Any.
        """
        return flag

class Game(Base):
    """A game."""

    def __init__(self, top: int = 3) -> None:
        self.top = top
        self.rng = random.Random(0)
        self.state = numpy.random.RandomState(0)

    def move(self, colour: Colour, how: Literal["up", 2, None], where: list[tuple[int, str]], *, far: float = 0.5,
             note: Optional[str] = None, more: Union[int, list[str]] = 1, table: dict[str, Any] | None = None) -> dict:
        """Move a piece.

        Args:
            colour: The colour.
            how: The way.
            where: The squares.
            far: How far (choices: [0.5, 1.5])
            note: Any note.
            more: More.
            table: A table.

        Returns:
            The board.
        """
        return {"colour": colour}

    @staticmethod
    def rules(page: int) -> str:
        """Read the rules.

        Args:
            page: The page.
        """
        return f"page {page}"

    def inherited(self, flag: bool = True) -> bool:
        return not flag

    def meet(self, here: str, there: str) -> str:
        """Wait for another.

        Args:
            here: A file to make.
            there: A file to wait for.
        """
        Path(here).touch()
        while not Path(there).exists():
            time.sleep(0.001)
        return "met"

    def nap(self, seconds: float) -> str:
        """Sleep.

        Args:
            seconds: How long.
        """
        time.sleep(seconds)
        return "rested"

    def _private(self) -> None: ...

class Scored(Game):
    async def get_reward(self) -> float:
        return float(self.row["worth"])

class NoHint:
    def reset(self, **row): ...
    def act(self, what): ...

class NoReset:
    def act(self, what: int) -> int:
        """Act.

        Args:
            what: It.
        """
        return what

class Reserved(Game):
    def covey(self) -> None:
        """A name that is taken."""

class Wrong:
    def __init__(self, **settings): raise RuntimeError("no server at home")
    def reset(self, **row): ...

class Slow:
    def __init__(self): time.sleep(1000)

class Dies:
    def __init__(self): __import__("os")._exit(5)

def exits(): raise SystemExit(2)

def meet(here: str, there: str) -> str:
    """Wait for another.

    Args:
        here: A file to make.
        there: A file to wait for.
    """
    return Game().meet(here, there)
'''


def source(path: Path, name: str, **settings: Any) -> EnvironmentSource:
    return EnvironmentSource(f"{path}:{name}", settings)
