"""Tests, room by room and file by file."""
