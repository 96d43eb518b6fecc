"""The reference: the Hugging Face `tokenizers` library. It judges the other engines, and serves what they may not."""

from __future__ import annotations

from importlib.metadata import version

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from dispatcher.engines.engine import is_fault, reason_of
from dispatcher.errors import InvalidOption
from dispatcher.request import EncodeOptions, TruncationSide
from gpu_core.errors import InternalError, TokenizerFileError

IDS_PER_PIECE = 65_536
REFERENCE_VERSION = version("tokenizers")


class ReferenceEngine:
    """Exact by definition.

    Only `encode_batch`, `encode_batch_fast` and `decode_batch` of the library release the GIL, so nothing else is
    called with text. Its truncation is state of the shared object and is never used; `encoding` cuts the result.
    """

    name = "reference"
    version = REFERENCE_VERSION
    guard_digest = ""

    def __init__(self, text: str) -> None:
        """Load the text of a tokenizer.json. Raises `TokenizerFileError` with the library's reason."""
        try:
            self.tokenizer: Tokenizer = Tokenizer.from_str(text)
        except BaseException as error:
            if not is_fault(error):
                raise
            raise TokenizerFileError(f"the reference library refuses the file: {reason_of(error)}") from None
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.n_special_tokens: int = self.tokenizer.num_special_tokens_to_add(False)
        self._bare = _strip_post_processor(self.tokenizer)

    def encode(self, document: str) -> bytes:
        """The ids of the document, without special tokens."""
        return ids_of(self.tokenizer.encode_batch_fast([document], add_special_tokens=False)[0])

    def encode_many(self, documents: list[str]) -> list[bytes]:
        """See `CpuEngine`."""
        return [ids_of(e) for e in self.tokenizer.encode_batch_fast(documents, add_special_tokens=False)]

    def encode_bare(self, document: str) -> bytes:
        """The ids before the post-processor saw them: a template may repeat or drop them."""
        return ids_of(self._bare.encode_batch_fast([document], add_special_tokens=False)[0])

    def guard(self, document: str) -> str | None:
        """Nothing is withheld from the judge."""
        return None

    def encoding(self, document: str, options: EncodeOptions) -> tuple[Encoding, bool]:
        """The library's result object as `enable_truncation` would give it, and whether something was cut off.

        Raises `InvalidOption` when the special tokens alone are more than `max_tokens`.
        """
        room = room_for(options, self.n_special_tokens)
        if room is None:
            encode = self.tokenizer.encode_batch_fast if options.ids_only else self.tokenizer.encode_batch
            return encode([document], add_special_tokens=options.add_special_tokens)[0], False
        # The library truncates between the model and the post-processor.
        encoding = self._bare.encode_batch([document], add_special_tokens=False)[0]
        truncated = len(encoding) > room
        if truncated:
            _truncate(encoding, room, options.truncation_side)
        return self.tokenizer.post_process(encoding, None, options.add_special_tokens), truncated


def ids_of(encoding: Encoding) -> bytes:
    """The ids of a result object, packed. In pieces: a step that is one call holds the interpreter to its end."""
    ids = encoding.ids
    if len(ids) <= IDS_PER_PIECE:
        return np.array(ids, dtype="<u4").tobytes()
    pieces = (ids[i : i + IDS_PER_PIECE] for i in range(0, len(ids), IDS_PER_PIECE))
    return b"".join([np.array(piece, dtype="<u4").tobytes() for piece in pieces])


def offsets_of(encoding: Encoding) -> NDArray[np.uint32]:
    """Start and end of each id in characters, shape (n, 2). (0, 0) for what the post-processor added.

    Of many ids one by one, for the same reason as in `ids_of`: the list of all holds the interpreter for 0.3 us an id.
    """
    n_ids = len(encoding)
    added = encoding.special_tokens_mask if n_ids > IDS_PER_PIECE else []
    offsets = np.empty((len(added), 2), dtype=np.uint32)
    for start in range(0, len(added), IDS_PER_PIECE):
        end = min(start + IDS_PER_PIECE, n_ids)
        spans = [encoding.token_to_chars(i) for i in range(start, end)]
        if any(span is None and not added[i] for i, span in enumerate(spans, start)):
            # A template that repeats the document: the library has lost track of what belongs to it.
            added = []
            break
        offsets[start:end] = [span or (0, 0) for span in spans]
    return offsets if added else np.array(encoding.offsets, dtype=np.uint32).reshape(-1, 2)


def room_for(options: EncodeOptions, n_special_tokens: int) -> int | None:
    """How many ids of the document itself `max_tokens` leaves room for; None = all. Raises `InvalidOption`."""
    if options.max_tokens is None:
        return None
    if options.max_tokens < 0:
        raise InvalidOption("max_tokens must not be negative")
    room = options.max_tokens - (n_special_tokens if options.add_special_tokens else 0)
    if room < 0:
        raise InvalidOption(
            f"max_tokens is {options.max_tokens}, but this tokenizer adds {n_special_tokens} special tokens; "
            "raise max_tokens or set add_special_tokens to false"
        )
    return room


def _truncate(encoding: Encoding, room: int, side: TruncationSide) -> None:
    """Keep `room` ids of one side.

    The library keeps every cut-off stretch of `room` ids as an object; halving first leaves it few of them.
    """
    while len(encoding) > 4 * room + 64:
        encoding.truncate(max(room, len(encoding) // 2), direction=side)
    encoding.truncate(room, direction=side)


def _strip_post_processor(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer without its post-processor; the model is shared, not copied."""
    bare = Tokenizer(tokenizer.model)
    if tokenizer.normalizer is not None:
        bare.normalizer = tokenizer.normalizer
    if tokenizer.pre_tokenizer is not None:
        bare.pre_tokenizer = tokenizer.pre_tokenizer
    added = tokenizer.get_added_tokens_decoder()
    bare.add_tokens([added[i] for i in sorted(added)])
    if {i: str(token) for i, token in bare.get_added_tokens_decoder().items()} != {i: str(t) for i, t in added.items()}:
        raise InternalError("the reference library does not copy the added tokens of this tokenizer faithfully")
    return bare
