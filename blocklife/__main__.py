"""``python -m blocklife`` is the command ``blocklife``."""

import sys

from blocklife.cli import main

sys.exit(main())
