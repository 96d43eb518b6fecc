"""The program of a frontend.

    python -m service.frontends.process CHANNEL KEEPER

CHANNEL is the descriptor of a socket (`service.frontends.messages`), KEEPER the process that must live.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from dispatcher.gpu.child import end_with


def main(arguments: Sequence[str]) -> int:
    """Serve until the keeper says otherwise, or is gone; the exit status."""
    if not end_with(int(arguments[1])):
        return 0
    # Importing all of the service takes a second, in which signals of the terminal and the keeper's end may come: a
    # process that lived on would hold the addresses.
    from service.frontends.frontend import keep_serving

    return keep_serving(int(arguments[0]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
