"""Directories of text, JSON lines and Parquet to packed ids: `sidetok tokenize-files`, and parts for other drivers."""
