"""The engine process: one GPU, its tables and its replays, and nothing else. It ends with the process that started it.

    python -m dispatcher.gpu.engine_process LAUNCHES CONTROL PARENT OPTIONS

LAUNCHES and CONTROL are descriptors of sockets (`dispatcher.gpu.messages`), PARENT is the process that must live, and
OPTIONS those of `GpuOptions` as JSON.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import socket
import sys
import traceback
from collections.abc import Callable, Sequence

from dispatcher.gpu.beats import beating
from dispatcher.gpu.child import end_with
from dispatcher.gpu.engine_models import ModelLoader
from dispatcher.gpu.messages import Fault, Hello, Progress, send_report
from dispatcher.gpu.replay_loop import ReplayLoop
from gpu_core.errors import DeviceUnavailable, SidetokError
from gpu_core.execution import Gpu
from gpu_core.options import GpuOptions

EXIT_FAULT, EXIT_PERMANENT = 3, 4
NAME = b"sidetok-engine"
"""What `ps` and `top` call the process."""
_PR_SET_NAME = 15


def main(arguments: Sequence[str], make_gpu: Callable[[GpuOptions], Gpu]) -> int:
    """Serve until the frontend is gone; the exit status."""
    launches, control = (_passed(int(number)) for number in arguments[:2])
    ctypes.CDLL(None).prctl(_PR_SET_NAME, NAME, 0, 0, 0)
    if not end_with(int(arguments[2])):
        return 0
    fields = json.loads(arguments[3])
    options = GpuOptions(**fields | {"size_classes_bytes": tuple(fields["size_classes_bytes"])})
    try:
        send_report(control, Progress())
        with beating(control):
            gpu = make_gpu(options)
        send_report(control, Hello(gpu.n_gpus, *gpu.memory_bytes(), gpu.name))
        # What the imports made lives as long as the process does.
        gc.collect()
        gc.freeze()
        loader = ModelLoader(gpu, control, options)
        loader.start()
        ReplayLoop(launches, control, loader).run()
    except (BrokenPipeError, ConnectionResetError):
        return 0
    except DeviceUnavailable as error:
        return _fail(control, Fault(True, str(error)), EXIT_PERMANENT)
    except SidetokError as error:
        return _fail(control, Fault(False, str(error)), EXIT_FAULT)
    except Exception as error:
        return _fail(control, Fault(False, f"{type(error).__name__} in {_where(error)}"), EXIT_FAULT)
    return 0


def _passed(fd: int) -> socket.socket:
    """A socket that was passed, under a low number: `select` takes none over 1023, and the frontend may have more."""
    low = os.dup(fd)
    os.close(fd)
    return socket.socket(fileno=low)


def _fail(control: socket.socket, fault: Fault, status: int) -> int:
    try:
        send_report(control, fault)
    except OSError:
        return status
    return status


def _where(error: Exception) -> str:
    """File and line of an error that nobody foresaw; its message could hold text of a document."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{os.path.basename(frame.filename)}:{frame.lineno}"


def _cuda_gpu(options: GpuOptions) -> Gpu:
    # CuPy takes a second to import, and a host device needs none of it.
    from gpu_core.device import CudaGpu

    return CudaGpu(options.device)


if __name__ == "__main__":
    # The driver's own clean-up can hang after a fault, and the kernel does the same.
    status = main(sys.argv[1:], _cuda_gpu)
    sys.stderr.flush()
    os._exit(status)
