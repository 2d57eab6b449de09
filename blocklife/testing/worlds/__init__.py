"""Small engines around the real ledger and scheduler, the device beside them, and what must hold between the two."""
