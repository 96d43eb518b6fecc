"""vLLM with ids from outside."""
