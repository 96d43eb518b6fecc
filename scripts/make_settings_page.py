"""Writes docs/settings.md from the option dataclasses; with --check only says whether it is up to date."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "settings.md"
sys.path.insert(0, str(ROOT))

from dispatcher.gpu.options import GpuRouteOptions  # noqa: E402
from dispatcher.options import DispatcherOptions  # noqa: E402
from service.files.options import FilesOptions  # noqa: E402
from service.options import ServiceOptions  # noqa: E402
from service.settings import Setting, settings_of  # noqa: E402

HEAD = """\
# Settings

Generated from the option dataclasses by `scripts/make_settings_page.py`; edit those, not this page.

Every knob of `sidetok serve` and `sidetok tokenize-files` is a flag and an environment variable. The flag wins over
the variable, and the variable over the default. Values are written the same way in both:

* a size is a number of bytes, or a number with `KiB`, `MiB`, `GiB` (powers of 1024) or `KB`, `MB`, `GB` (of 1000);
* a duration is a number of seconds, or a number with `ms`, `s`, `m` or `h`;
* a switch is `--name` or `--no-name` as a flag; `1`, `true`, `yes`, `on` or `0`, `false`, `no`, `off` as a variable;
* a repeatable flag is given once for each value; its variable holds the values separated by commas.

An empty variable counts as not set, except for text, where it is the empty text. A bad value ends the program with one
line and status 2. Values of the form `tcp://...` in variables of numbers are ignored: Kubernetes puts them into
`SIDETOK_PORT` of every pod beside a Service that is named `sidetok`.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    rooms = (
        ("Service", ServiceOptions),
        ("Dispatcher", DispatcherOptions),
        ("GPU route", GpuRouteOptions),
        ("Files", FilesOptions),
    )
    for title, options in rooms:
        parts.append(f"## {title}\n\n{(options.__doc__ or '').strip()}\n\n{table(settings_of(options))}")
    return "\n".join(parts)


def table(settings: list[Setting]) -> str:
    """One row for each setting."""
    rows = ["| flag | variable | default | meaning |", "|---|---|---|---|"]
    rows += [f"| `{s.flag}` | `{s.variable}` | {default(s)} | {meaning(s)} |" for s in settings]
    return "\n".join(rows) + "\n"


def default(setting: Setting) -> str:
    """The default as it would be written on the command line."""
    shown = setting.show(setting.default)
    return f"`{shown}`" if shown else ""


def meaning(setting: Setting) -> str:
    """The documentation of the knob, with its choices."""
    choices = f" One of {', '.join(f'`{c}`' for c in setting.choices)}." if setting.choices else ""
    return (setting.doc + choices).replace("|", "\\|")


def main() -> int:
    """Write or check the page; the exit status is 1 when it had to change."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is not up to date")
    check = parser.parse_args().check
    current = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    if current == page():
        return 0
    if check:
        print("docs/settings.md is not up to date; run scripts/make_settings_page.py", file=sys.stderr)
        return 1
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
