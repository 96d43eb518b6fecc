"""Small tokenizer files, one for each kind of model and for every feature that the real files at hand lack."""

from __future__ import annotations

from collections.abc import Callable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from dispatcher.proof_cases import real_text

CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


GLUE = "a\U00020000 a\u0c95 a\u0951 \u017fe \n\n\n " * 40
"""Makes the vocabulary join letters to scripts that they seldom meet, so that ids show where a text was split."""


def _trained(tokenizer: Tokenizer, trainer: trainers.Trainer) -> Tokenizer:
    tokenizer.train_from_iterator([*real_text(), GLUE], trainer)
    return tokenizer


def byte_bpe() -> bytes:
    """Byte-level BPE with GPT-2's splits, special tokens on both sides, and added tokens with every flag."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    _trained(tokenizer, trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False))
    tokenizer.add_special_tokens(["<s>", "</s>", AddedToken("<mask>", lstrip=True, special=True)])
    tokenizer.add_tokens(
        [
            AddedToken("<sep>", rstrip=True, normalized=False),
            AddedToken("word", single_word=True, normalized=False),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s> </s>", special_tokens=[(t, tokenizer.token_to_id(t)) for t in ("<s>", "</s>")]
    )
    return tokenizer.to_str().encode()


def split_bpe() -> bytes:
    """Byte-level BPE with cl100k's splits, NFC, ignore_merges, and offsets trimmed by the post-processor."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(CL100K), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    _trained(tokenizer, trainers.BpeTrainer(vocab_size=1200, initial_alphabet=alphabet, show_progress=False))
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    return tokenizer.to_str().encode()


def character_bpe() -> bytes:
    """BPE over characters with an unknown token, an end-of-word suffix and white space as the only split."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder()
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<unk>"], end_of_word_suffix="</w>", limit_alphabet=80, show_progress=False
    )
    return _trained(tokenizer, trainer).to_str().encode()


def unigram() -> bytes:
    """Unigram with NFKC and Metaspace, as T5 and XLM-R have it."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("  ", " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=1500, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    _trained(tokenizer, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", tokenizer.token_to_id("</s>"))]
    )
    return tokenizer.to_str().encode()


def word_piece() -> bytes:
    """WordPiece as BERT has it."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    _trained(tokenizer, trainers.WordPieceTrainer(vocab_size=800, special_tokens=special, show_progress=False))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", special.index("[SEP]")), ("[CLS]", 2))
    return tokenizer.to_str().encode()


def word_level() -> bytes:
    """One id for each known word, with truncation and padding left in the file."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    _trained(tokenizer, trainers.WordLevelTrainer(vocab_size=300, special_tokens=["[UNK]"], show_progress=False))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=16)
    return tokenizer.to_str().encode()


def repeating() -> bytes:
    """A template that is no prefix and suffix: the document stands in it twice."""
    tokenizer = Tokenizer.from_str(byte_bpe().decode())
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer.to_str().encode()


def overlapping() -> bytes:
    """An added token that is searched for in the normalized text and shares characters with one found before."""
    tokenizer = Tokenizer.from_str(byte_bpe().decode())
    tokenizer.add_tokens([AddedToken("s><", normalized=True)])
    return tokenizer.to_str().encode()


SYNTHETIC: dict[str, Callable[[], bytes]] = {
    function.__name__: function
    for function in (byte_bpe, split_bpe, character_bpe, unigram, word_piece, word_level, repeating, overlapping)
}
