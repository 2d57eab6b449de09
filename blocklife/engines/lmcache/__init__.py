"""What knows LMCache: the watch over its multi-process mode."""
