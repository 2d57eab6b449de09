"""Paths through a world: the exhaustive explorer, random walks, and stories that explain a path that breaks a rule."""
