"""Calls of a dispatcher with GPUs, whoever drives them."""

from __future__ import annotations

import threading

from dispatcher.dispatcher import Dispatcher
from dispatcher.gpu.group import EncodedGroup
from dispatcher.gpus import Gpus
from dispatcher.request import EncodeOptions
from dispatcher.tokenizer import Tokenizer

PLAIN = EncodeOptions(add_special_tokens=False)


class GroupCaller:
    """Submits groups for one tokenizer."""

    def __init__(self, gpus: Gpus, dispatcher: Dispatcher, tokenizer: Tokenizer) -> None:
        self.gpus, self.dispatcher, self._tokenizer = gpus, dispatcher, tokenizer
        self.threads: set[int] = set()
        """Threads that results of a GPU came back on."""

    @property
    def serves(self) -> bool:
        """Whether a GPU takes documents."""
        return self.gpus.serves(self._tokenizer.spec.digest)

    def submit(self, documents: list[str]) -> list[EncodedGroup]:
        """Where the results will be."""
        results: list[EncodedGroup] = []

        def on_done(result: EncodedGroup | None, error: Exception | None) -> None:
            assert result is not None, error
            results.append(result)
            if result.route == "gpu":
                self.threads.add(threading.get_ident())

        self.dispatcher.encode_group(self._tokenizer, documents, on_done, PLAIN)
        return results
