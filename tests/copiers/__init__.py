"""What moves bytes: on the processor, on streams, over several ranks."""
