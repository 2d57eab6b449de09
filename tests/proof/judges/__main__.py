"""``python -m tests.proof.judges [WORLD]``: a small world of the ledger as Promela, for SPIN.

WORLD is a name, sizes like ``blocks=2,contract=hold``, or both.
"""

import sys

from tests.proof.judges.promela import promela
from tests.proof.ledger_world.settings import LedgerSettings

if __name__ == "__main__":
    print(promela(LedgerSettings.parse(sys.argv[1] if sys.argv[1:] else "smallest")), end="")
