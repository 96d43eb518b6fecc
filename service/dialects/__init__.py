"""Dialects: other servers' wire formats, translated onto the one request type."""
