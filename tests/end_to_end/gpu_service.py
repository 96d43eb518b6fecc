"""`sidetok serve` with GPU engines that run on the host: python -m tests.end_to_end.gpu_service ENGINE FLAG ...

ENGINE is the engine's program as JSON.
"""

from __future__ import annotations

import json
import sys

from service.frontends import keeper
from service.server import serve
from service.settings import parse_serve

if __name__ == "__main__":
    options = parse_serve(sys.argv[2:])
    run = keeper.serve if options[0].frontends > 1 else serve
    sys.exit(run(*options, json.loads(sys.argv[1])))
