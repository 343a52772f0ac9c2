"""One file per command of `covey`: its options, and the function that runs it."""
