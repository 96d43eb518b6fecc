"""Tokenizers side by side in one process: equality first, then time. No service, no sockets."""
