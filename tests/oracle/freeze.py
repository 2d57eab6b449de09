"""Copy the ledger and the offload scheduler of a commit into this folder, with their imports rewritten.

python -m tests.oracle.freeze COMMIT
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PARTS = ("errors.py", "hook_errors.py", "states.py", "lifecycle", "ledger", "offload")
_IMPORT = re.compile(r"\bblocklife\.(errors|hook_errors|states|lifecycle|ledger|offload)\b")


def main() -> int:
    """Write the copy."""
    commit = sys.argv[1]
    listed = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", commit, *(f"blocklife/{part}" for part in PARTS)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in listed.stdout.split():
        if name.endswith(".py"):
            text = subprocess.run(
                ["git", "show", f"{commit}:{name}"], cwd=ROOT, capture_output=True, text=True, check=True
            ).stdout
            target = HERE / Path(name).relative_to("blocklife")
            target.parent.mkdir(parents=True, exist_ok=True)
            text = _IMPORT.sub(r"tests.oracle.\1", text)
            target.write_text(text.replace("from blocklife import", "from tests.oracle import"), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
