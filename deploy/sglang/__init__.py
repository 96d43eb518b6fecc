"""SGLang with ids from outside."""
