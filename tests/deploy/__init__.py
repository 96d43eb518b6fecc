"""What is in deploy/, run and checked by the tools that will read it."""
