#!/usr/bin/env python3
"""Write tests/service/chat_vectors.json: what transformers makes of the conversations in tests/service/chat_matrix.py.

Needs transformers, and the models in the shared data; those that are not at hand keep the vectors they have.
Usage: python -m scripts.make_chat_vectors
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.service.chat_matrix import OWN_TEMPLATES, VECTORS, cases, digest, models_with_templates
from tests.service.chat_reference import Reference
from tests.service.small_model import SPECIAL_TOKENS, tokenizer_json


def main() -> None:
    """Add or replace the vectors of every template at hand."""
    vectors = json.loads(VECTORS.read_bytes()) if VECTORS.is_file() else {}
    with tempfile.TemporaryDirectory() as folder:
        for name, files in models_with_templates(Path(folder)).items():
            reference = Reference(files.chat_templates["default"], files.special_tokens, files.tokenizer_json)
            vectors[name] = {case.name: digest(*reference.render(case)) for case in cases()}
    for name, source in OWN_TEMPLATES.items():
        reference = Reference(source, SPECIAL_TOKENS, tokenizer_json())
        vectors[name] = {case.name: digest(*reference.render(case)) for case in cases()}
    VECTORS.write_text(json.dumps(vectors, indent=0, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
