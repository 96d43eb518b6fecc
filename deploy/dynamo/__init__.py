"""Dynamo with ids from outside."""
