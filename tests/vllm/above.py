"""``python -m tests.vllm.run --python 0.33.0 -m tests.vllm.above`` writes `specs/scenarios/vllm/above.csv`.

It says how our own connector does on the cases that are not written for vLLM, as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.behind.scenario_tables import as_they_are, write
from tests.programs import with_fixed_hashes
from tests.proof.drivers.vllm import BlocklifeDriver

HEADER = ("case", "in 0.33.0 blocklife")


def above(cases: Iterable[str] | None = None) -> Iterator[tuple[str, str]]:
    """Each of these cases, with what it shows or why it cannot be run."""
    return as_they_are(BlocklifeDriver, cases, "fence")


if __name__ == "__main__":
    with_fixed_hashes("tests.vllm.above")
    write("vllm", "above", HEADER, above())
