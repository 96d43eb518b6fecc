"""Knobs of `sidetok tokenize-files`; each once, with its default and one line of documentation in `metadata`."""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.options import knob


@dataclass(frozen=True, slots=True)
class FilesOptions:
    """What is read, and how its ids are written; for `sidetok tokenize-files` only."""

    tokenizer: str = knob("", "Model directory or tokenizer.json; empty = the embedded model.")
    input_format: str = knob(
        "auto", "How files are read; auto = by the ends of their names.", ("auto", "text", "jsonl", "parquet")
    )
    field: str = knob("text", "Field of JSON objects, or column of Parquet files, that holds the text.")
    text_unit: str = knob("file", "What one document of a text file is.", ("file", "line"))
    special_tokens: bool = knob(True, "Add the special tokens that the tokenizer's file puts around each document.")
    eos: str = knob("", "Token put after each document, for example </s>; auto = the model's eos_token, empty = none.")
    output_format: str = knob("bin", "Packed ids and an index, or Parquet with one row a document.", ("bin", "parquet"))
    id_type: str = knob(
        "auto", "Type of an id; auto = uint16 where all ids of the tokenizer fit.", ("auto", "uint16", "uint32")
    )
    unit_bytes: int = knob(64 << 20, "Files are worked on in groups of this size; a larger one is a group.", at_least=1)
    shard_tokens: int = knob(100_000_000, "Ids after which a group goes on in another shard.", at_least=1)
    max_document_bytes: int = knob(64 << 20, "Longest document; a longer one is left out and counted.", at_least=1)
    max_errors: int = knob(1000, "Bad files and records after which the run stops; until then they are left out.")
    overwrite: bool = knob(False, "Remove what an earlier run left in the output directory, instead of going on.")
    progress: str = knob("auto", "Progress bar; auto = on a terminal.", ("auto", "always", "never"))
