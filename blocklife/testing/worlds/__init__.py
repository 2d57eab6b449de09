"""Small worlds to explore: the real ledger and scheduler in a small engine, a simulated device, and checks between the two."""
