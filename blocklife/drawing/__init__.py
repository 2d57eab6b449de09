"""Drawings and tables of lifecycles, all made from the compiled tables."""
