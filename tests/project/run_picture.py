"""The drawing of a run that README shows: ``python -m tests.project.run_picture`` writes it."""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path

from blocklife.cli import main

PICTURE = Path(__file__).parents[2] / "specs" / "measurements" / "run.svg"
REPLAY = ["replay", "--requests", "60", "--gpu-blocks", "300", "--abort", "0.05", "--faults", "--seed", "1"]
"""A run in which copies fail, come late and hang, and requests are given up."""


def drawn() -> bytes:
    """The life of a block with what this run did of it."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        recording, picture = Path(folder, "run.jsonl"), Path(folder, "run.svg")
        for words in (
            [*REPLAY, "--record", str(recording)],
            ["draw", "block", "--plain", "--recording", str(recording), "-o", str(picture)],
        ):
            if status := main(words):
                raise RuntimeError(f"blocklife {' '.join(words)}: exit status {status}")
        return picture.read_bytes()


if __name__ == "__main__":
    PICTURE.write_bytes(drawn())
