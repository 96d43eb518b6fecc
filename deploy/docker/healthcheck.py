"""Exit status 0 when the service of this container wants traffic: python -m deploy.docker.healthcheck."""

from __future__ import annotations

import sys
from http.client import HTTPException

from deploy.exchange import connect
from service.settings import parse_serve

TIMEOUT_S = 2.0


def main() -> int:
    """Ask where the environment says that the service listens; 1 for any answer but 200, and for none."""
    options, _, _ = parse_serve([])
    connection = connect(f"http://127.0.0.1:{options.port}" if options.host else f"unix:{options.uds}", TIMEOUT_S)
    try:
        connection.request("GET", "/ready")
        return int(connection.getresponse().status != 200)
    except (OSError, HTTPException):
        return 1


if __name__ == "__main__":
    sys.exit(main())
