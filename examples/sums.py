"""A complete environment: the model is asked for a sum, and hands it to a calculator of the environment's own.

Train with it: covey train environment.factory=examples/sums.py:Sums training.max_steps=30
"""

import random


class Sums:
    """Asks for a sum. The reward is 1 for working out that very sum, and 0.25 less for every further call."""

    def __init__(self, digits=3):
        self.digits = digits

    def reset(self, **row):  # gets the columns of the row, if there are rows
        low, high = 10 ** (self.digits - 1), 10**self.digits - 1
        self.numbers = [random.randint(low, high), random.randint(low, high)]
        self.calls, self.right = 0, False
        return f"What is {self.numbers[0]} + {self.numbers[1]}?"

    def calculator(self, expression: str) -> str:
        """Evaluate the sum of two numbers.

        Args:
            expression: The sum, such as 12 + 30.
        """
        self.calls += 1
        first, second = map(int, expression.split("+"))  # the model reads what an exception says
        self.right = self.right or [first, second] == self.numbers
        return str(first + second)

    def get_reward(self):
        return max(0.0, 1 - 0.25 * (self.calls - 1)) if self.right else 0.0
