"""The kernel: its columns, its rules, and what its source must not contain."""
