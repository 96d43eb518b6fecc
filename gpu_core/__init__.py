"""Bytes to ids on the device: a tokenizer file becomes a spec, tables, kernels. No HTTP, no asyncio."""

from gpu_core.errors import TokenizerFileError, UnsupportedTokenizer
from gpu_core.spec import TokenizerSpec, read_spec

__all__ = ["TokenizerFileError", "TokenizerSpec", "UnsupportedTokenizer", "read_spec"]
