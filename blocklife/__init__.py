"""Typed state machines for the life of every KV-cache block."""

import sys

__version__ = "0.1.0"

_shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
if _shell is not None:  # in a notebook things show themselves without being asked; elsewhere nothing is imported here
    from blocklife.drawing.notebook import enable

    enable(_shell)
