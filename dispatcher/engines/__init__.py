"""CPU engines: one small interface, three native libraries behind it."""

import os

# Both libraries read these once, at their first call. Threads of their own would hide work from the CPU clock of the
# calling thread, and take CPUs from the process that this service is a sidecar of.
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["FASTOKENS_BPE_THREADS"] = "1"

from dispatcher.engines.engine import CpuEngine, is_fault

__all__ = ["CpuEngine", "is_fault"]
