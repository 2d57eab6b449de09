"""What a run did to its places, line by line: written while it happens, read back, and checked."""

from blocklife.recording.format import VERSION
from blocklife.recording.writing import Recorder

__all__ = ["VERSION", "Recorder"]
