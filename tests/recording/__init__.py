"""What a run wrote down, and what is read from it."""
