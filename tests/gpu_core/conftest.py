"""Kernels on the host, twin and reference of one tokenizer, made once for all tests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from gpu_core.errors import UnsupportedTokenizer
from gpu_core.shim import HostPipeline, compiler
from gpu_core.spec import TokenizerSpec, read_spec
from gpu_core.tables import Tables, build_tables, check_support
from gpu_core.twin import Twin
from tests.data import EMBEDDED, FULL, families, tokenizer_json

CAPACITY = 256 << 10


@dataclass(frozen=True)
class Bench:
    """One tokenizer four times: file, tables, twin, kernels; and the reference that judges them."""

    spec: TokenizerSpec
    tables: Tables
    twin: Twin
    pipeline: HostPipeline
    reference: Tokenizer

    def reference_ids(self, text: str) -> list[int]:
        """What is exact."""
        ids: list[int] = self.reference.encode(text, add_special_tokens=False).ids
        return ids


def device_families() -> list[str]:
    """Tokenizers at hand that the device serves: small ones, the embedded one, and real ones (in the full run all)."""
    wanted = families() if FULL else [f for f in families() if f in {"byte_bpe", "split_bpe", EMBEDDED, *_REAL}]
    return [family for family in wanted if is_supported(family)]


_REAL = ("llama3_1", "qwen3")


@lru_cache
def is_supported(family: str) -> bool:
    """Whether the device serves the tokenizer, with pre-tokens. For others see test_bridge_kernel.py."""
    spec = read_spec(tokenizer_json(family))
    try:
        check_support(spec)
    except UnsupportedTokenizer:
        return False
    return spec.byte_level


@pytest.fixture(scope="session")
def shim_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the compiled kernels of this session lie."""
    return tmp_path_factory.mktemp("shim")


_benches: dict[str, Bench] = {}


@pytest.fixture
def bench(request: pytest.FixtureRequest, shim_cache: Path) -> Bench:
    """The tokenizer that the test's parameter names."""
    if compiler() is None:
        pytest.skip("no C++ compiler")
    family: str = request.param
    if family not in _benches:
        data = tokenizer_json(family)
        spec = read_spec(data)
        reference = Tokenizer.from_str(data.decode())
        reference.no_truncation()
        reference.no_padding()
        tables = build_tables(data, spec)
        pipeline = HostPipeline(tables, shim_cache, CAPACITY, max_documents=4096)
        _benches[family] = Bench(spec, tables, Twin(data, spec), pipeline, reference)
    return _benches[family]
