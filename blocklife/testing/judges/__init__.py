"""Outside judges: the tables as a program that a model checker of others runs."""
