"""What ends a run of `sidetok tokenize-files`; single bad files and records do not."""


class FilesError(Exception):
    """The run cannot start or go on; the message is one line for whoever started it."""
