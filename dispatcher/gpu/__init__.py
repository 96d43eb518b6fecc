"""The GPU route: batches of documents, sent to an engine process that replays graphs over a shared arena."""
