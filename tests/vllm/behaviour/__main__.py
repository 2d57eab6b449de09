"""``python -m tests.vllm.behaviour --markdown``: the page specs/vllm-behaviour.md; with ``--write`` it is written."""

from __future__ import annotations

import sys

from tests.vllm.behaviour.page import main

sys.exit(main(sys.argv[1:]))
