"""Several frontends behind the same sockets: one process that keeps them, and what each of them needs to know."""
