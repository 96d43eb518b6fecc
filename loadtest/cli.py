"""The command `sidetok-loadtest`: run, versus, suite, report, compare, capacity."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from loadtest.errors import LoadTestError
from loadtest.options import LoadOptions
from loadtest.scenarios import SCENARIOS
from service.program import program
from service.settings import Parser, Setting, settings_of

USAGE = """\
usage: sidetok-loadtest COMMAND [ARGUMENT ...]

  run SCENARIO         offer load to a running service and write what came of it
  versus SCENARIO      the same to several servers in turn, and what their medians say
  suite FOLDER         the runs that the project's own figures come from, on each route
  report RESULT ...    Markdown, and plots with --plots FOLDER
  compare A B          two results side by side
  capacity RESULT ...  from measured rates to GPUs fed and cost

`sidetok-loadtest COMMAND --help` says more.
"""
CANNOT_RUN, NOT_RIGHT = 2, 1


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Status 1: wrong answers or failed requests; 2: the command line or the target is at fault."""
    argv = sys.argv[1:] if argv is None else argv
    name, rest = (argv[0], argv[1:]) if argv else ("", [])
    if name in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    command = COMMANDS.get(name)
    if command is None:
        print(f"sidetok-loadtest: no command named {name!r}; there are {', '.join(COMMANDS)}", file=sys.stderr)
        return CANNOT_RUN
    try:
        return command(rest)
    except LoadTestError as error:
        print(f"sidetok-loadtest: {error}", file=sys.stderr)
        return CANNOT_RUN


def run(argv: Sequence[str]) -> int:
    """`sidetok-loadtest run SCENARIO`."""
    name, options, patience_s = parse_run(argv)
    # Imported late: --help must not wait for them.
    from loadtest.progress import shown
    from loadtest.report import markdown
    from loadtest.result import write_result
    from loadtest.run import run as run_scenario

    _wait(options.target, options.model, options.route, patience_s)
    with shown() as progress:
        result = run_scenario(name, options, progress)
    path = Path(options.output or f"sidetok-{name}.json")
    write_result(path, result)
    print(markdown([result]))
    print(f"written to {path}", file=sys.stderr)
    return NOT_RIGHT if went_wrong(result) else 0


def versus(argv: Sequence[str]) -> int:
    """`sidetok-loadtest versus SCENARIO --contender ... --contender ...`."""
    arguments, options = parse_versus(argv)
    from loadtest.progress import shown
    from loadtest.result import write_result
    from loadtest.versus import parse_contenders, run_versus, went_wrong
    from loadtest.versus_report import versus_report

    contenders = parse_contenders(arguments.contender)
    for contender in contenders:
        _wait(contender.target, options.model, options.route, arguments.wait)
    with shown() as progress:
        result = run_versus(arguments.scenario, options, contenders, arguments.rounds, progress)
    path = Path(options.output or f"sidetok-versus-{arguments.scenario}.json")
    write_result(path, result)
    print(versus_report([result]))
    print(f"written to {path}", file=sys.stderr)
    return NOT_RIGHT if went_wrong(result) else 0


def suite(argv: Sequence[str]) -> int:
    """`sidetok-loadtest suite FOLDER`."""
    arguments, options = parse_suite(argv)
    from loadtest.progress import shown
    from loadtest.report import markdown
    from loadtest.suite import run_suite

    wrong = False
    routes, scenarios = arguments.routes.split(","), arguments.scenarios.split(",")
    for route in routes:
        _wait(options.target, options.model, route, arguments.wait)
    with shown() as progress:
        for path, result in run_suite(arguments.folder, options, routes, scenarios, progress):
            print(f"{markdown([result])}\n\n(`{path}`)\n", flush=True)
            wrong = wrong or went_wrong(result)
    return NOT_RIGHT if wrong else 0


def _wait(address: str, model: str, route: str, patience_s: float) -> None:
    """Until the server is ready, and serves the route that is asked for. Raises `TargetUnreachable`."""
    from loadtest.server import wait_for, wait_for_route
    from loadtest.target import parse_target

    target = parse_target(address)
    wait_for(target, patience_s)
    if route != "auto":
        wait_for_route(target, model, route, patience_s)


def went_wrong(result: dict[str, Any]) -> bool:
    """Whether an id was wrong or a request failed; what fails in the step that ends a search was to be expected."""
    searching = result["options"]["find_saturation"]
    different = any(step["equality"].get("n_different") for step in result["steps"])
    return different or any(step["failures"] and not (searching and step["saturated"]) for step in result["steps"])


def parse_run(argv: Sequence[str]) -> tuple[str, LoadOptions, float]:
    """Scenario, options, and how long to wait for the target. A bad value is one line and exit status 2."""
    parser = Parser(prog="sidetok-loadtest run", description="Offer load to a running service, over its public wires.")
    _add_scenario(parser)
    _add_flags(parser)
    namespace = parser.parse_args(argv)
    return namespace.scenario, _options(parser, namespace), namespace.wait


def parse_versus(argv: Sequence[str]) -> tuple[argparse.Namespace, LoadOptions]:
    """Scenario, contenders and rounds, and the options that all runs share; their targets are the contenders."""
    parser = Parser(prog="sidetok-loadtest versus", description="The same load to several running servers in turn.")
    _add_scenario(parser)
    parser.add_argument(
        "--contender",
        action="append",
        default=[],
        metavar="NAME=ADDRESS@PID",
        help="A server; twice or more, ours first.",
    )
    parser.add_argument("--rounds", type=int, default=3, help="Runs against each server, in turn. Default: 3.")
    _add_flags(parser)
    namespace = parser.parse_args(argv)
    return namespace, _options(parser, namespace)


def parse_suite(argv: Sequence[str]) -> tuple[argparse.Namespace, LoadOptions]:
    """Folder, routes and scenarios, and the options that all runs share."""
    from loadtest.suite import RUNS

    names = [run.scenario for run in RUNS]
    parser = Parser(prog="sidetok-loadtest suite", description="The runs that the project's figures come from.")
    parser.add_argument("folder", type=Path, help="Where the results go.")
    parser.add_argument("--routes", default="auto", help="By commas, of auto, cpu and gpu. Default: auto.")
    parser.add_argument("--scenarios", default=",".join(names), help=f"By commas, of {', '.join(names)}. Default: all.")
    _add_flags(parser)
    namespace = parser.parse_args(argv)
    for flag, text, known in (
        ("--routes", namespace.routes, ["auto", "cpu", "gpu"]),
        ("--scenarios", namespace.scenarios, names),
    ):
        if not set(text.split(",")) <= set(known):
            parser.error(f"{flag}: {text!r} has others than {', '.join(known)}")
    return namespace, _options(parser, namespace)


def _add_scenario(parser: argparse.ArgumentParser) -> None:
    described = "; ".join(f"{scenario.name}: {scenario.doc}" for scenario in SCENARIOS.values())
    parser.add_argument("scenario", choices=tuple(SCENARIOS), help=described.replace("%", "%%"))


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--wait", type=float, default=0.0, metavar="SECONDS", help="Wait this long for the target.")
    for setting in settings_of(LoadOptions):
        _add_flag(parser, setting)


def _options(parser: Parser, namespace: argparse.Namespace) -> LoadOptions:
    values = {}
    for setting in settings_of(LoadOptions):
        given = getattr(namespace, setting.field, None)
        try:
            values[setting.field] = setting.default if given is None else _parsed(setting, given)
        except ValueError as error:
            parser.error(f"{setting.flag}: {error}")
    return LoadOptions(**values)


def _add_flag(parser: argparse.ArgumentParser, setting: Setting) -> None:
    shown = "" if setting.default in ("", False) else f" Default: {setting.show(setting.default)}."
    text = f"{setting.doc}{shown}".replace("%", "%%")
    if setting.type is bool:
        parser.add_argument(setting.flag, dest=setting.field, action="store_true", default=None, help=text)
    else:
        metavar = "{" + ",".join(setting.choices) + "}" if setting.choices else setting.name.upper()
        parser.add_argument(setting.flag, dest=setting.field, metavar=metavar, help=text)


def _parsed(setting: Setting, given: Any) -> Any:
    return given if setting.type is bool else setting.parse(given)


def report(argv: Sequence[str]) -> int:
    """`sidetok-loadtest report RESULT ...`."""
    parser = Parser(prog="sidetok-loadtest report", description="Results as Markdown and plots.")
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="Draw plots into this folder.")
    parser.add_argument("--format", choices=("png", "svg"), default="png", help="Of the plots.")
    arguments = parser.parse_args(argv)
    from loadtest.report import markdown
    from loadtest.result import FORMAT, read_result
    from loadtest.versus import FORMAT as VERSUS
    from loadtest.versus_report import versus_report

    found = [read_result(path, FORMAT, VERSUS) for path in arguments.results]
    results, comparisons = ([r for r in found if r["format"] == form] for form in (FORMAT, VERSUS))
    parts = [markdown(results)] if results else []
    print("\n\n".join([*parts, versus_report(comparisons)] if comparisons else parts))
    if arguments.plots and results:
        from loadtest.plots import draw

        for path in draw(results, arguments.plots, arguments.format):
            print(f"drawn: {path}", file=sys.stderr)
    return 0


def compare(argv: Sequence[str]) -> int:
    """`sidetok-loadtest compare A B`."""
    parser = Parser(prog="sidetok-loadtest compare", description="Two results side by side; ratios are B over A.")
    parser.add_argument("a", type=Path)
    parser.add_argument("b", type=Path)
    arguments = parser.parse_args(argv)
    from loadtest.compare import compared
    from loadtest.result import read_result

    print(compared(read_result(arguments.a), read_result(arguments.b)))
    return 0


def capacity(argv: Sequence[str]) -> int:
    """`sidetok-loadtest capacity RESULT ...`."""
    parser = Parser(prog="sidetok-loadtest capacity", description="From measured rates to GPUs fed and cost.")
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument(
        "--core-hour", type=float, default=0.0, metavar="PRICE", help="Price of a CPU core for an hour."
    )
    parser.add_argument("--gpu-hour", type=float, default=0.0, metavar="PRICE", help="Price of a GPU for an hour.")
    arguments = parser.parse_args(argv)
    from loadtest.capacity import Prices, table
    from loadtest.result import read_result

    print(table([read_result(path) for path in arguments.results], Prices(arguments.core_hour, arguments.gpu_hour)))
    return 0


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "run": run, "versus": versus, "suite": suite, "report": report, "compare": compare, "capacity": capacity,
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
