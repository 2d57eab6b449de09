"""What it takes until a command has begun: seconds of the processor in a new process, the least of several.

The least, and not the median: nothing makes a start shorter than it is, and whatever else the machine does makes it longer.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.bench import Figure, Scale
from tests.bench.targets import STARTUP

STARTS = (
    ("blocklife --help", ("-m", "blocklife", "--help"), "python, argparse", ("-c", "import argparse")),
    ("import blocklife.ledger", ("-c", "import blocklife.ledger"), "import numpy, attrs", ("-c", "import numpy, attrs")),
)
"""What is started, and a start that it cannot be below."""


def processor_seconds(words: tuple[str, ...]) -> float:
    """What Python takes to run these words."""
    started = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(started.pid, 0)
    started.returncode = os.waitstatus_to_exitcode(status)
    if started.returncode:
        raise subprocess.CalledProcessError(started.returncode, started.args)
    return used.ru_utime + used.ru_stime


def measure(scale: Scale) -> list[Figure]:
    """The figures of this suite."""
    figures = []
    for name, ours, peer_name, peer in STARTS:
        # in turns; the first of each may write the compiled modules of its imports
        found = [
            (processor_seconds(ours), processor_seconds(peer)) for _ in range(2 * scale.repetitions + 1 if scale.full else 1)
        ]
        figures.append(
            Figure(
                name=name,
                ours=min(mine for mine, _ in found),
                unit="s of a processor",
                peer_name=peer_name,
                peer=min(theirs for _, theirs in found),
                target=str(STARTUP),
            )
        )
    return figures
