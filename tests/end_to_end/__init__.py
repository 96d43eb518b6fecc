"""Tests of the real process, over real sockets."""
