"""Every knob of the option dataclasses as a flag and an environment variable. The only file that reads the environment.

One rule names them all: the field's name, without a trailing `_s` (seconds are the unit of every duration).
`drain_timeout_s` is `--drain-timeout` and `SIDETOK_DRAIN_TIMEOUT`. A flag wins over the environment, and the
environment over the default.
"""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NoReturn, get_type_hints

from dispatcher.gpu.options import GpuRouteOptions
from dispatcher.options import DispatcherOptions
from service.options import ServiceOptions

PREFIX = "SIDETOK_"

BYTE_UNITS = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40,
}  # fmt: skip
SECONDS_UNITS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class Setting:
    """One knob as the outside sees it."""

    field: str
    type: Any
    default: Any
    doc: str
    choices: tuple[str, ...] | None
    at_least: float
    at_most: float | None

    @property
    def name(self) -> str:
        """The name that the flag and the environment variable are made from."""
        return self.field.removesuffix("_s")

    @property
    def flag(self) -> str:
        """For example `--drain-timeout`."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """For example `SIDETOK_DRAIN_TIMEOUT`."""
        return PREFIX + self.name.upper()

    @property
    def repeatable(self) -> bool:
        """Whether the flag may be given several times; the variable then holds a comma-separated list."""
        return bool(self.type == tuple[str, ...])

    def parse(self, text: str) -> Any:
        """The value that `text` stands for. Raises `ValueError` that says what is wrong with it."""
        if self.repeatable:
            return tuple(part.strip() for part in text.split(",") if part.strip())
        if self.type is bool:
            return _parse_bool(text)
        if self.type in (int, float):
            return self._in_range(self._parse_number(text), text)
        if self.choices and text not in self.choices:
            raise ValueError(f"{text!r} is not one of {', '.join(self.choices)}")
        return text

    def show(self, value: Any) -> str:
        """The shortest text that `parse` reads as `value`, for help and documentation."""
        if self.repeatable:
            return ",".join(value)
        if self.type is bool:
            return "on" if value else "off"
        if self.field.endswith("_bytes"):
            return _show_bytes(value)
        if self.field.endswith("_s"):
            return f"{value:g}s"
        return f"{value:g}" if self.type is float else str(value)

    def _parse_number(self, text: str) -> float:
        if self.field.endswith("_bytes"):
            return _parse_bytes(text)
        if not self.field.endswith("_s"):
            return _parse_int(text) if self.type is int else _parse_float(text)
        seconds = _parse_seconds(text)
        if self.type is int and seconds != int(seconds):
            raise ValueError(f"{text!r} is not a whole number of seconds")
        return int(seconds) if self.type is int else seconds

    def _in_range(self, value: float, text: str) -> float:
        if value < self.at_least:
            raise ValueError(f"{text!r} is below {self.at_least:g}")
        if self.at_most is not None and value > self.at_most:
            raise ValueError(f"{text!r} is above {self.at_most:g}")
        return value


def settings_of(options: type) -> list[Setting]:
    """The settings of one option dataclass, in the order of its fields."""
    types = get_type_hints(options)
    names = ("doc", "choices", "at_least", "at_most")
    return [Setting(f.name, types[f.name], f.default, *(f.metadata[name] for name in names)) for f in fields(options)]


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line on standard error and exit status 2."""

    def __init__(self, **kwargs: Any) -> None:
        # Without abbreviations a flag that is added later cannot change what a command line means.
        super().__init__(allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Print the line and exit."""
        self.exit(2, f"{self.prog}: {message}\n")


def add_flags(parser: argparse._ActionsContainer, settings: Iterable[Setting]) -> None:
    """Add one flag for each setting; flags that are not given leave no trace in the namespace."""
    for setting in settings:
        kwargs: dict[str, Any] = {"dest": setting.field, "default": argparse.SUPPRESS, "help": _help(setting)}
        if setting.type is bool:
            kwargs["action"] = argparse.BooleanOptionalAction
        else:
            kwargs["action"] = "append" if setting.repeatable else "store"
            kwargs["metavar"] = _metavar(setting)
        parser.add_argument(setting.flag, **kwargs)


def resolve(
    parser: Parser, namespace: argparse.Namespace, settings: Iterable[Setting], environ: Mapping[str, str] | None
) -> dict[str, Any]:
    """Field name -> value, from flag, environment (None = that of the process) or default.

    A bad value ends the process by `parser.error`.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    for setting in settings:
        given = getattr(namespace, setting.field, None)
        try:
            values[setting.field] = _from_flag(setting, given) if given is not None else _from_environ(setting, environ)
        except ValueError as error:
            parser.error(f"{setting.flag if given is not None else setting.variable}: {error}")
    return values


def parse_serve(
    argv: Sequence[str], environ: Mapping[str, str] | None = None
) -> tuple[ServiceOptions, DispatcherOptions, GpuRouteOptions]:
    """The options of `sidetok serve` from its arguments and the environment (that of the process by default).

    A bad value is one line on standard error and exit status 2.
    """
    parser = Parser(
        prog="sidetok serve",
        description="Serve token ids over HTTP, on TCP and a Unix socket.",
        epilog="Each flag can also be set by the environment variable in brackets; the flag wins.",
    )
    add_flags(parser.add_argument_group("service"), settings_of(ServiceOptions))
    add_flags(parser.add_argument_group("dispatcher"), settings_of(DispatcherOptions))
    add_flags(parser.add_argument_group("GPU route"), settings_of(GpuRouteOptions))
    namespace = parser.parse_args(argv)
    service = ServiceOptions(**resolve(parser, namespace, settings_of(ServiceOptions), environ))
    dispatcher = DispatcherOptions(**resolve(parser, namespace, settings_of(DispatcherOptions), environ))
    try:
        gpu = GpuRouteOptions(**resolve(parser, namespace, settings_of(GpuRouteOptions), environ))
    except ValueError as error:
        parser.error(str(error))
    if not service.host and not service.uds:
        parser.error("nothing to listen on: give --host, --uds or both")
    if service.uds and not re.fullmatch(r"0?[0-7]{3}", service.uds_mode):
        parser.error(f"--uds-mode: {service.uds_mode!r} is not an octal file mode such as 0660")
    return service, with_cache_dir(dispatcher, environ), gpu


def passed_sockets(environ: Mapping[str, str] | None = None, pid: int | None = None) -> range:
    """Descriptors of the listening sockets that systemd hands to this process (`pid`); empty without activation."""
    environ = os.environ if environ is None else environ
    meant = environ.get("LISTEN_PID") == str(os.getpid() if pid is None else pid)
    n_sockets = environ.get("LISTEN_FDS", "")
    return range(3, 3 + int(n_sockets) if meant and re.fullmatch(r"[0-9]{1,4}", n_sockets) else 3)


def with_cache_dir(options: DispatcherOptions, environ: Mapping[str, str] | None = None) -> DispatcherOptions:
    """The options with an empty `cache_dir` replaced by the user's cache directory, where there is one."""
    environ = os.environ if environ is None else environ
    if options.cache_dir:
        return options
    base = environ.get("XDG_CACHE_HOME") or (environ.get("HOME") and os.path.join(environ["HOME"], ".cache"))
    return replace(options, cache_dir=os.path.join(base, "sidetok")) if base else options


def _from_flag(setting: Setting, given: Any) -> Any:
    if setting.repeatable:
        return tuple(given)
    return given if setting.type is bool else setting.parse(given)


def _from_environ(setting: Setting, environ: Mapping[str, str]) -> Any:
    text = environ.get(setting.variable)
    # Kubernetes sets SIDETOK_PORT=tcp://10.0.0.1:8400 in every pod beside a Service named sidetok.
    if text is None or (setting.type is int and text.startswith(("tcp://", "udp://"))):
        return setting.default
    if not text and setting.type is not str:
        return setting.default
    return setting.parse(text)


def _parse_int(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _parse_float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not a finite number")
    return value


def _parse_bytes(text: str) -> int:
    match = re.fullmatch(r"([+-]?[0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", text)
    if match is None or match[2].upper() not in BYTE_UNITS:
        raise ValueError(f"{text!r} is not a size such as 65536, 64KiB, 64MiB or 1GB")
    unit = BYTE_UNITS[match[2].upper()]
    return int(match[1]) * unit if match[1].lstrip("+-").isdigit() else int(float(match[1]) * unit)


def _parse_seconds(text: str) -> float:
    match = re.fullmatch(r"(.*?[0-9.])\s*([a-z]*)", text)
    if match is None or match[2] not in SECONDS_UNITS:
        raise ValueError(f"{text!r} is not a duration such as 30, 1.5s, 500ms or 2m")
    return _parse_float(match[1]) * SECONDS_UNITS[match[2]]


def _parse_bool(text: str) -> bool:
    if text.lower() not in BOOLEANS:
        raise ValueError(f"{text!r} is not one of {', '.join(BOOLEANS)}")
    return BOOLEANS[text.lower()]


def _show_bytes(value: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value and value % unit == 0:
            return f"{value // unit}{name}"
    return str(value)


def _metavar(setting: Setting) -> str:
    if setting.choices:
        return "{" + ",".join(setting.choices) + "}"
    if setting.field.endswith("_bytes"):
        return "SIZE"
    if setting.field.endswith("_s"):
        return "SECONDS"
    return {int: "N", float: "NUMBER"}.get(setting.type, "TEXT")


def _help(setting: Setting) -> str:
    default = setting.show(setting.default)
    shown = f" Default: {default}." if default else ""
    return f"{setting.doc}{shown} [{setting.variable}]".replace("%", "%%")
