"""One rule switched off at a time: which world finds it, and after how many steps."""
