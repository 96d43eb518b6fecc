"""Load on a running server from outside, and tokenizers side by side in one process: what it does, and at what cost."""
