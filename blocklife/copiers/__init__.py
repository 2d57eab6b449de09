"""Where bytes move: one protocol, and one module for each kind of memory."""
