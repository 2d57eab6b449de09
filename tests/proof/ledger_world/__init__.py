"""The small world of the ledger alone: its settings, its actions, and the world that the explorer and SPIN count."""
