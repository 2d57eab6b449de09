"""An independent judge: the tables as a program for a model checker."""
