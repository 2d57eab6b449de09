"""Every command of `blocklife`, as somebody calls it who has only an installed wheel: from an empty folder, in this order.

`tests.wheels` calls them in a new environment; a test sees to it that no command is forgotten.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from attrs import frozen


@frozen
class Called:
    """One call, what it ends with, and a part of what it says."""

    words: str
    status: int = 0
    says: str = ""
    needs: str = ""
    """The packages without which it is refused, by a line that names them; empty where it needs none."""

    @property
    def command(self) -> str:
        """Without options and files: ``recording check``."""
        first, *rest = self.words.split()
        return f"{first} {rest[0]}" if first in GROUPS else first


GROUPS = ("scenario", "recording", "workload", "store")
"""Commands that have commands."""
CALLED = (
    Called("--version", says="blocklife 0."),
    Called("--help", says="commands:"),
    Called("doctor", says="all that is installed works"),
    Called("doctor --json", says='"ok": true'),
    Called("workload generate --requests 8 --output workload.jsonl"),
    Called("replay workload.jsonl --record run.jsonl", says="verified"),
    Called("recording check run.jsonl", says="legal"),
    Called("recording show run.jsonl --block 1"),
    Called("recording stats run.jsonl"),
    Called("recording perfetto run.jsonl -o trace.json"),
    Called("recording view run.jsonl -o page.html", says="page.html"),
    Called("check --max-states 20", status=3, says="states"),
    Called("check --list", says="clients-fence"),
    Called("check --walk 50 --seed 1"),
    Called("scenario list", says="A01 (safety, full-pool"),
    Called("scenario list --methods", says="finish"),
    Called("scenario show A01", says='tests = "safety"'),
    Called("scenario run A01 vllm/V1", says="0 unsafe"),
    Called("size --model config.json --host-bytes 1GiB", status=2, says="No such file"),
    Called("store check fs:store:1M --only small_values", says="1 passed, 0 failed"),
    Called("draw block", says="ALLOCATED"),
    Called("draw slot --format table"),
    Called("draw job --format mermaid -o job.mmd"),
    Called("draw request --format dot"),
    Called("draw block --format markup"),
    Called("draw all -o machines.html", needs="pygraphviz"),
    Called("draw slot -o slot.svg", needs="pygraphviz"),
    Called("draw slot -o slot.png", needs="pygraphviz"),
    Called("recording view run.jsonl", says="run.html"),
    Called("completion bash", says="complete -o default -F _blocklife blocklife"),
    Called("completion zsh", says="bashcompinit"),
    Called("spec --check", status=2, says="in a checkout"),
)


def call_all(program: Sequence[str | Path], folder: Path, *, present: Sequence[str] = ()) -> Iterator[tuple[Called, str]]:
    """Call them all in this folder; those that do not end as they should, each with what it said. *present*: packages."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for each in CALLED:
        refused = bool(each.needs) and each.needs not in present
        status, says = (2, f"pip install '{each.needs}") if refused else (each.status, each.says)
        ran = subprocess.run(
            [*map(str, program), *each.words.split()],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        said = ran.stdout + ran.stderr
        if ran.returncode != status or says not in said or "Traceback" in said:
            yield each, f"status {ran.returncode}: {said[-500:]}"
