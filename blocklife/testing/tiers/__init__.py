"""For stores: a suite of checks, and a store in memory."""
