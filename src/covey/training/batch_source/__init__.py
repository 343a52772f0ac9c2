"""Which prompts a step gets, and what is recorded of their completions and rewards."""
