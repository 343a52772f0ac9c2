"""The tools and environments that come with Covey."""
