"""For stores: a suite of checks, a store in memory, and faults that are planted in a store."""
