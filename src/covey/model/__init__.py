"""Models: loading, and the starter model that ships with the package."""
