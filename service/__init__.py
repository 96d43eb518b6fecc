"""The outside world of sidetok: HTTP, sockets, settings, the command line, chat templates and the model registry."""

__version__ = "0.1.0"
