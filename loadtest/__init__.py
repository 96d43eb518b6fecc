"""Load on a running sidetok, from the outside: arrivals, clients and reports."""
