"""The ledger: its verbs, what they refuse, and what holds after each."""
