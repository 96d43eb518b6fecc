"""Text Embeddings Inference: `POST /tokenize` with offsets, and `POST /decode`.

Source: its `router/src/http/types.rs`. See docs/dialects.md for what differs on purpose.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from dispatcher.errors import InvalidText, TooBusy
from dispatcher.request import DecodeRequest, EncodedDocument, EncodeOptions, EncodeRequest, Request, Result
from gpu_core.errors import SidetokError
from service.codecs import check_count
from service.dialects.body import Mistakes, error_answer, packed_ids, read_json
from service.dialects.json_endpoint import JsonEndpoint, one_or_named
from service.endpoint import Answer, Head
from service.errors import BodyTooLarge, InvalidBody, InvalidField, UnsupportedMediaType, status_of
from service.head import route_of

Fields = dict[str, Any]

_OPTIONS = {
    special: EncodeOptions(special, char_offsets=True, token_strings=True, special_tokens_mask=True)
    for special in (False, True)
}


EMPTY = {"inputs": "`inputs` cannot be empty", "ids": "`ids` cannot be empty"}
"""Said of a field that has nothing in it."""


class _TeiEndpoint(JsonEndpoint[Fields]):
    """An endpoint whose errors are `{"error", "error_type"}`."""

    def form(self, body: bytes) -> Fields:
        """See `JsonEndpoint`."""
        fields = read_json(body)
        if not isinstance(fields, dict):
            raise Mistakes([{"type": "dict_type", "loc": ("body",), "msg": "The body is an object.", "input": fields}])
        return fields

    def fail(self, head: Head, error: SidetokError) -> Answer:
        """See `service.endpoint.Endpoint`."""
        code, kind = _status(error)
        return error_answer({"error": str(error), "error_type": kind}, code, error)


class Tokenize(_TeiEndpoint):
    """`POST /tokenize`: one text or several; the answer is a list of lists in both cases."""

    def request(self, head: Head, form: Fields, n_bytes: int) -> EncodeRequest:
        """See `JsonEndpoint`."""
        inputs: Any = form.get("inputs")
        texts: list[Any] = inputs if isinstance(inputs, list) else [inputs]
        if not {str}.issuperset(map(type, texts)):
            raise InvalidField("inputs is text, or a list of texts.", "inputs")
        if not texts:
            raise InvalidField(EMPTY["inputs"], "inputs")
        if form.get("prompt_name") is not None:
            raise InvalidField("prompt_name: no prompts are configured here; send the whole text.", "prompt_name")
        check_count(len(texts))
        special = form.get("add_special_tokens", True)
        if not isinstance(special, bool):
            raise InvalidField("add_special_tokens is true or false.", "add_special_tokens")
        model = one_or_named(self.registry, _name(form))
        return EncodeRequest(model.name, model.ready_tokenizer, texts, _OPTIONS[special], n_bytes, True, route_of(head))

    def write(self, head: Head, request: Request, result: Result) -> Answer:
        """See `service.endpoint.Endpoint`."""
        assert isinstance(request, EncodeRequest)
        encoded: list[EncodedDocument] = result  # type: ignore[assignment]
        lists = [_tokens(text, document) for text, document in zip(request.documents, encoded, strict=True)]
        return Answer(b"[%b]" % b",".join(lists))


class Decode(_TeiEndpoint):
    """`POST /decode`: ids to texts, always a list."""

    def request(self, head: Head, form: Fields, n_bytes: int) -> DecodeRequest:
        """See `JsonEndpoint`."""
        ids = form.get("ids")
        if not isinstance(ids, list):
            raise InvalidField("ids is a list of ids, or a list of such lists.", "ids")
        if not ids:
            raise InvalidField(EMPTY["ids"], "ids")
        lists = ids if isinstance(ids[0], list) else [ids]
        check_count(len(lists))
        skip = form.get("skip_special_tokens", True)
        if not isinstance(skip, bool):
            raise InvalidField("skip_special_tokens is true or false.", "skip_special_tokens")
        model = one_or_named(self.registry, _name(form))
        return DecodeRequest(model.name, model.ready_tokenizer, [_ids(item) for item in lists], skip, n_bytes, True)

    def write(self, head: Head, request: Request, result: Result) -> Answer:
        """See `service.endpoint.Endpoint`."""
        return Answer(orjson.dumps(result))


def _status(error: SidetokError) -> tuple[int, str]:
    """Status and `error_type`."""
    code = status_of(error).code
    if isinstance(error, InvalidField) and str(error) == EMPTY.get(error.param):
        return 400, "Empty"
    if isinstance(error, BodyTooLarge):
        return 413, "Validation"
    if isinstance(error, InvalidBody | InvalidField):
        return 422, "Validation"
    if isinstance(error, InvalidText):
        return 422, "Tokenizer"
    if isinstance(error, TooBusy):
        return code, "Overloaded"
    if isinstance(error, UnsupportedMediaType) or code < 500:
        return code, "Validation"
    return code, "Unhealthy" if code == 503 else "Backend"


def _name(fields: Fields) -> str | None:
    name = fields.get("model")
    if name is not None and not isinstance(name, str):
        raise InvalidField("model is a name.", "model")
    return name


def _ids(values: Any) -> NDArray[np.uint32]:
    ids = packed_ids(values) if isinstance(values, list) else None
    if ids is None:
        raise InvalidField("ids is a list of ids, or a list of such lists.", "ids")
    return ids


def _tokens(text: str, document: EncodedDocument) -> bytes:
    """The tokens of one text: a special one by its name and without a place, another by what it covers."""
    assert document.char_offsets is not None
    assert document.token_strings is not None
    assert document.special_tokens_mask is not None
    rows = zip(
        np.frombuffer(document.ids, "<u4").tolist(),
        document.special_tokens_mask.tolist(),
        document.char_offsets.tolist(),
        document.token_strings,
        strict=True,
    )
    return orjson.dumps(
        [
            {"id": i, "text": name, "special": True, "start": None, "stop": None}
            if special
            else {"id": i, "text": text[start:stop], "special": False, "start": start, "stop": stop}
            for i, special, (start, stop), name in rows
        ]
    )
