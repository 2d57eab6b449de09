"""The recipe *a state* of CONTRIBUTING, followed in a copy of the package: a block that is free and overwritten, WIPED.

Goal: the steps of the recipe are enough, and whoever forgets one of them is told so in one sentence. Method: the steps in code
are replacements in a copy of the package; each case runs it in a process of its own, with all of them or without one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import blocklife

PACKAGE = Path(blocklife.__file__).parent
ROOT = Path(__file__).resolve().parents[2]

STEPS: dict[str, tuple[str, str, str]] = {
    "member": (
        "states.py",
        '    CACHED = "content final, held by no request;',
        '    WIPED = "free, and overwritten with a pattern"\n{}',
    ),
    "nature": ("states.py", "        Block.CACHED: Nature(", "        Block.WIPED: Nature(Tone.REST, Trait.FREE),\n{}"),
    "row to it": (
        "states.py",
        "\n\nclass SlotLife(",
        """
    @edge(Block.FREED, to=Block.WIPED)
    def wipe(self) -> None:
        \"\"\"Overwrite a free place.\"\"\"
{}""",
    ),
    "row from it": (
        "states.py",
        "    def allocate(self",
        "    @edge(Block.WIPED, to=Block.ALLOCATED)\n{}",
    ),
    "colour": ("drawing/_theme.py", '    "CACHED": (', '    "WIPED": ("#bbddaa", "#3d4a20"),\n{}'),
    "verb": (
        "ledger/_ledger.py",
        "    @verb\n    def roll_back(",
        """\
    @verb
    def wipe(self, blocks: Sequence[int]) -> None:
        \"\"\"Note that free blocks have been overwritten. Edges: block FREED → WIPED.\"\"\"
        count = verbs.choose_fresh(self._core, [self._check.blocks(blocks)])
        move_blocks(self._core, BLOCK_RULES["wipe"].move(), count, 0)

{}""",
    ),
    "imports of the verb": (
        "ledger/_ledger.py",
        "\n_NOTHING: tuple[()]",
        "\nfrom blocklife.core._moves import move_blocks\nfrom blocklife.core._tables import BLOCK_RULES\n{}",
    ),
}
"""Each step in code: the file, the text at which it is made, and what stands there then, with ``{}`` for that text."""


def grown(folder: Path, left_out: str = "", instead: str = "{}") -> None:
    """Copy the package, and follow the steps; of one that is left out there is only what stands there *instead*."""
    shutil.copytree(PACKAGE, folder / "blocklife", ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.toml"))
    for name, (file, place, after) in STEPS.items():
        path = folder / "blocklife" / file
        text = path.read_text(encoding="utf-8")
        assert text.count(place) == 1, (name, place)
        text = text.replace(place, (instead if name == left_out else after).format(place))
        path.write_text(text, encoding="utf-8")


def said(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    """What a program answers that runs with the package in *folder*, beside the proofs of this project."""
    known = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, "-c", program], cwd=folder, env=known, capture_output=True, text=True, check=False)


IMPORTS = "import blocklife.drawing._theme, tests.proof.ledger_world.world"
"""What fails at the import if a step is missing."""


SAID = [
    ("nature", "{}", "Block: no row for WIPED; give each a tone and its traits"),
    (
        "nature",
        "        Block.WIPED: Nature(Tone.REST),\n{}",
        "Block.WIPED: block.allocate is never refused there, so its traits have to be FREE",
    ),
    ("row to it", "{}", "BlockLife: no way leads from FREED to WIPED (write a row)"),
    (
        "row from it",
        "{}",
        "BlockLife: no way leads from WIPED to the initial state FREED (write a row, or declare final states if it may end)",
    ),
    (
        "row from it",
        "    @edge(Block.WIPED, to=Block.ALLOCATED, when=fenced)\n{}",
        "Block.WIPED: its traits are FREE, so block.allocate needs a row there without a guard",
    ),
    ("colour", "{}", "no colour is given to WIPED; write a light and a dark one into STATE_COLOURS"),
    (
        "verb",
        "{}",
        "block.wipe: nothing takes this event; write the verb Ledger.wipe(), which gets a list of blocks, "
        "or a row of COUPLINGS that has it as an effect",
    ),
]
"""Each step that may be forgotten, what then stands there, and what is said; CONTRIBUTING quotes from it."""


@pytest.mark.parametrize(("step", "instead", "sentence"), SAID)
def test_step_that_is_left_out_is_named_at_import(step: str, instead: str, sentence: str, tmp_path: Path) -> None:
    """Nobody who forgets one searches for it: the last line says what is missing, and where it goes."""
    grown(tmp_path, step, instead)
    answer = said(tmp_path, IMPORTS)

    assert answer.returncode == 1
    assert answer.stderr.splitlines()[-1].partition(": ")[2] == sentence


GROWN = """
from blocklife.drawing._spec import drawings
from blocklife.errors import MisuseError, RefusedError
from blocklife.ledger import Ledger, Limits
from blocklife.ledger._snapshot import canonical_names
from blocklife.ledger.invariants import check
from blocklife.states import Block, BlockLife
from blocklife.testing.exploring._explore import Verdict, explore
from tests.proof.judges.promela import promela
from tests.proof.ledger_world.settings import LedgerSettings
from tests.proof.ledger_world.world import LedgerWorld

# the free count, the free list, and what is handed out
ledger = Ledger(Limits(num_blocks=4, num_slots=1))
ledger.wipe([1, 2])
assert (ledger.blocks.free, ledger.blocks.free_order()) == (3, [1, 2, 3])
assert ledger.blocks.count_busy() == 0 and ledger.blocks.has_room(3) and check(ledger) == []
saved = ledger.snapshot(canonical_names(ledger._state))
ledger.restore(saved)
assert ledger.blocks.free == 3 and ledger.snapshot() == saved and ledger.statistics().blocks["WIPED"] == 2
try:
    ledger.drop([ledger.blocks.life(1)])
except RefusedError as refused:
    print(refused)
for blocks in ([0], [3, 3], [3, 1]):
    try:
        ledger.wipe(blocks)
    except MisuseError as refused:
        print(refused)
assert ledger.snapshot() == saved
ledger.add_request("a")
ledger.allocate("a", 3)
assert ledger.blocks.free == 0 and check(ledger) == []
try:
    ledger.wipe([1])
except RefusedError as refused:
    print(refused)

# the world of all orders, the model for SPIN, the drawing
world = LedgerWorld(LedgerSettings.parse("verbs=wipe"))
assert explore(world, processes=1).verdict is Verdict.HOLDS
taken = world.coverage()["block"]
assert all(taken[row.index] for row in BlockLife.table.rows if Block.WIPED in (row.source, row.target))
assert "BLOCK_WIPED" in promela(LedgerSettings.parse("verbs=wipe"))
assert all("WIPED" in text for name, text in drawings().items() if name in ("block.svg", "block-plain.svg"))
"""


def test_state_that_is_added_is_free_by_itself(tmp_path: Path) -> None:
    """Count, list and hand-out follow from its trait; refusals, worlds, models and drawings from its rows."""
    grown(tmp_path)
    answer = said(tmp_path, GROWN)

    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines() == [
        "block 1: cannot DROP while WIPED: free, and overwritten with a pattern "
        "(it is allowed while CACHED, PENDING_STORE or IN_FLIGHT)",
        "block 0: blocks are 1 to 3 (0 is the null block)",
        "block 3: it is named twice in one call",
        "block 1: cannot WIPE while WIPED: free, and overwritten with a pattern (it is allowed while FREED)",
        "block 1: cannot WIPE while ALLOCATED: request a holds it, and its content is not final (first release)",
    ]
