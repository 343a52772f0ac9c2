"""A reward of the run's own."""


def variety(completions, **columns):
    """The share of different characters."""
    return [len(set(one[-1]["content"])) / 40 for one in completions]
