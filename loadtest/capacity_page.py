"""The page on capacity: where its figures come from, and a table of the results that are committed."""

from __future__ import annotations

from loadtest.capacity import MAX_CPU_SHARE, Prices, table
from loadtest.report import about
from loadtest.result import Result
from loadtest.scenarios.fleet import FLEET
from loadtest.stepping import MAX_FAILED, MIN_ACHIEVED
from loadtest.table import number

PRICES = Prices(core_hour=0.04, gpu_hour=3.0)
"""Round figures for the column of cost; they are an assumption and stand on the page as one."""

HEAD = f"""\
# Capacity

Generated from the result files in `docs/results` by `scripts/make_capacity_page.py`; edit neither the page nor the
files. How to make such files: [load test](loadtest.md).

| column | is |
|---|---|
| result | the file; `frontends-4-...`: four [frontends](operations.md#frontends), `two-gpus-...`: two GPUs |
| sustained requests/s | achieved rate of the highest sustained step, see below |
| of each engine | that rate by the GPUs that the service was given, on the GPU route |
| host CPU us/request | of the server in that step, by its own counters, else by the kernel's |
| CPUs busy | the product of both |
| MB/s of text | offered in that step |
| model GPUs fed | sustained requests/s by {FLEET.rate:g}, the rate of one GPU in `fleet`; only that scenario can say |
| per million requests | the CPUs busy and, if the GPU route was used, every GPU of the service, at the sustained rate |
| limit | what ended the search for the highest rate |

A step is sustained when {MIN_ACHIEVED:.0%} of the offered requests were answered in time, at most {MAX_FAILED:.0%}
failed and the generator was not at its limit; a result with a wrong id is no result. A CPU costs {PRICES.core_hour:g}
an hour here and a GPU {PRICES.gpu_hour:g}: assumed prices, `sidetok-loadtest capacity --core-hour --gpu-hour` takes
others. CPUs are the limit when the server kept more than {MAX_CPU_SHARE:.0%} of them busy.

One machine is one row. A fleet is a number of such machines behind a balancer that keeps sessions in place; nothing is
shared between them, so their rates add up.
"""

EMPTY = "No results are committed yet, so there are no figures here.\n"


def page(results: dict[str, Result]) -> str:
    """The page for results by the name of their file."""
    if not results:
        return f"{HEAD}\n{EMPTY}"
    names = [name.removesuffix(".json") for name in results]
    sources = "\n".join(f"* `{name}`: {about(result)}" for name, result in results.items())
    steps = sum(len(result["steps"]) for result in results.values())
    count = f"{len(results)} results with {number(steps)} steps:"
    return f"{HEAD}\n{table(list(results.values()), PRICES, names)}\n\n{count}\n\n{sources}\n"
