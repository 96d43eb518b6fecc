"""The command `sidetok`: serve, tokenize-files, inspect, version."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from service import __version__
from service.program import program

USAGE = """\
usage: sidetok COMMAND [ARGUMENT ...]

  serve          serve token ids over HTTP, on TCP and a Unix socket
  tokenize-files INPUT OUTPUT
                 tokenize a directory of text, JSON lines or Parquet to packed ids
  inspect PATH   say what loading finds in a tokenizer file or model directory
  version        print the version

`sidetok COMMAND --help` says more.
"""


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the result is the exit status (2 for a command line that cannot be understood)."""
    argv = sys.argv[1:] if argv is None else argv
    name, rest = (argv[0], argv[1:]) if argv else ("", [])
    if name in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    command = COMMANDS.get("version" if name == "--version" else name)
    if command is None:
        what = f"no command named {name!r}" if name else "no command"
        print(f"sidetok: {what}; there are {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    return command(rest)


def serve(argv: Sequence[str]) -> int:
    """`sidetok serve`: run until a signal ends it."""
    from service.settings import parse_serve

    options = parse_serve(argv)
    # Imported late: a wrong flag or --help must not wait for the whole service to load.
    if options[0].frontends > 1:
        from service.frontends.keeper import serve as keep

        return keep(*options)
    from service.server import serve as run

    return run(*options)


def tokenize_files(argv: Sequence[str]) -> int:
    """`sidetok tokenize-files INPUT OUTPUT`: ids of the documents in files."""
    from service.files.command import tokenize_files as run

    return run(argv)


def inspect(argv: Sequence[str]) -> int:
    """`sidetok inspect PATH`: load one tokenizer and say what was found."""
    from service.inspect_command import inspect as run

    return run(argv)


def version(argv: Sequence[str]) -> int:
    """`sidetok version`: print the version."""
    if argv:
        print(f"sidetok version: takes no arguments, got {argv[0]!r}", file=sys.stderr)
        return 2
    print(f"sidetok {__version__}")
    return 0


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "serve": serve,
    "tokenize-files": tokenize_files,
    "inspect": inspect,
    "version": version,
}

if __name__ == "__main__":
    sys.exit(main())
