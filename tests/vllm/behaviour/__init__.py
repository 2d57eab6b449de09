"""vLLM's own tests of its offloading scheduler, and what became of each of them."""
