"""What a run wrote down, checked line by line against the tables, the couplings and the invariants."""
