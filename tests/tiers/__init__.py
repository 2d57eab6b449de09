"""What keeps content below the host tier."""
