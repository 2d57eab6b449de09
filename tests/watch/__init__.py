"""The watch over a vLLM, as far as it needs no vLLM."""
