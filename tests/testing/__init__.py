"""Worlds, the explorer, walks, mutants, scenarios, and the pytest plugin."""
