"""Typed state machines for the life of every KV-cache block."""

__version__ = "0.1.0"
