"""The tasks that come with Covey, whose problems are drawn at random, and those of a library."""
