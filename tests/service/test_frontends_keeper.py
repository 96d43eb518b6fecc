"""Keeping frontends, with tiny programs in their place: starts, ends, further starts, figures."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from dispatcher.gpu.child import python_command
from dispatcher.gpu.options import GpuRouteOptions
from dispatcher.options import DispatcherOptions
from service.frontends.keeper import LOOK_S, Keeper
from service.frontends.kept import Kept
from service.frontends.messages import Setup
from service.options import ServiceOptions
from tests.fakes import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = f"""
import os, socket, sys
sys.path.insert(0, {str(ROOT)!r})
from service.frontends.messages import frame, receive_now
sock = socket.socket(fileno=int(sys.argv[1]))
assert os.getppid() == int(sys.argv[2])
message = receive_now(sock)
if message is None:
    sys.exit(0)
kind, setup = message
number = setup["number"]
diary = open(os.path.join({{folder!r}}, "diary"), "a", buffering=1)
def say(kind, content=None): sock.sendall(frame(kind, content))
def note(word): diary.write(f"{{{{number}}}} {{{{word}}}}\\n")
note("begins" + " and waits" * setup["waits"])
"""
SERVES = """
say("started")
say("loaded", [True, {}])
while (message := receive_now(sock)):
    kind, content = message
    if kind == "report":
        say("report", [content[0], [["t", "T.", "counter", [["t_total", {}, number]]]]])
    else:
        note(f"{kind} {content or ''}".strip())
    if kind == "shut":
        break
"""


class Diary:
    """What the programs noted, in the order in which it happened to each."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "diary"

    def of(self, number: int) -> list[str]:
        """What one frontend noted."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        return [line.partition(" ")[2] for line in lines if line.startswith(f"{number} ")]


def kept(
    folder: Path,
    program: str,
    act: Callable[[Diary], Coroutine[Any, Any, None]] | None,
    n_frontends: int = 2,
    look_s: float = LOOK_S,
) -> int:
    """Keep frontends that run a program until `act` ended, or they did by themselves; the exit status."""
    setup = Setup(
        number=0,
        sockets=[],
        board=-1,
        n_frontends=n_frontends,
        passed=False,
        waits=False,
        started_s=1.0,
        service=ServiceOptions(frontends=n_frontends, drain_timeout_s=0.1),
        work=DispatcherOptions(),
        gpu=GpuRouteOptions(),
        engine_command=[],
        changes=[],
    )
    command = [sys.executable, "-c", PROGRAM.format(folder=str(folder)) + program]

    async def run() -> int:
        keeper = Keeper(setup, [], command, look_s)
        keeping = asyncio.ensure_future(keeper.run())
        if act is not None:
            await act(Diary(folder))
            keeper.stop()
        return await asyncio.wait_for(keeping, LIMIT_S)

    return asyncio.run(run())


async def until(happened: Callable[[], Any]) -> None:
    """Let the loop turn until another process did something."""
    limit_s = time.monotonic() + LIMIT_S
    while not happened():
        assert time.monotonic() < limit_s
        await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program is killed because the machine is busy while it ends."""
    monkeypatch.setattr("service.frontends.keeper.LATE_S", LIMIT_S)
    monkeypatch.setattr("service.frontends.kept.LINGER_S", LIMIT_S)


def test_a_life(tmp_path: Path) -> None:
    """Frontends begin, hear of each other, and are told to drain before they are told that nobody comes any more."""

    async def act(diary: Diary) -> None:
        await until(lambda: all("peers ready" in diary.of(number) for number in (1, 2, 3)))

    assert kept(tmp_path, SERVES, act, 3) == 0
    for number in (1, 2, 3):
        noted = Diary(tmp_path).of(number)
        assert noted[0] == "begins"
        assert noted[-2:] == ["drain", "shut"] or noted[-3::2] == ["drain", "shut"]
    assert sum(Diary(tmp_path).of(number).count("banner") for number in (1, 2, 3)) == 1


def test_one_that_dies_is_started_again(tmp_path: Path) -> None:
    """Others serve on; the new one waits for its models before it lets anybody in."""
    dies = """
if number == 2 and not setup["waits"]:
    say("started")
    os.kill(os.getpid(), 9)
"""

    async def act(diary: Diary) -> None:
        await until(lambda: "begins and waits" in diary.of(2) and "peers ready" in diary.of(2))

    assert kept(tmp_path, dies + SERVES, act) == 0
    assert Diary(tmp_path).of(1).count("begins") == 1
    assert Diary(tmp_path).of(2)[:2] == ["begins", "begins and waits"]


def test_one_that_hangs_is_ended(tmp_path: Path) -> None:
    """A frontend that moved and does not any more is killed, and a new one comes; one that says nothing yet is not."""
    hangs = """
from service.frontends.board import Board
import time
board = Board(setup["board"], 2)
if number == 2 and not setup["waits"]:
    say("started")
    say("loaded", [True, {}])
    board.beat(number)
    time.sleep(60)
"""

    async def act(diary: Diary) -> None:
        await until(lambda: "begins and waits" in diary.of(2) and "peers ready" in diary.of(2))

    assert kept(tmp_path, hangs + SERVES, act, look_s=0.01) == 0
    assert Diary(tmp_path).of(1).count("begins") == 1


@pytest.mark.parametrize("other", ["other", ""])
def test_one_with_other_files_serves_nobody(tmp_path: Path, other: str) -> None:
    """A frontend that read, or could not read, what others read before comes again until it is as they are."""
    program = """
import time
lives = open(diary.name).read().count(f"{number} begins")
digest = "same" if number == 1 or lives != 2 else "OTHER"
note(f"loads {digest}.")
say("started")
while number == 2 and "1 admitted" not in open(diary.name).read():
    time.sleep(0.01)
say("loaded", [True, {"1": digest, "2": digest * (number == 2)}])
if number == 2 and lives == 1:
    while receive_now(sock) != ("peers", "ready"):
        pass
    os.kill(os.getpid(), 9)
""".replace("OTHER", other)
    serves = SERVES.replace('say("started")\nsay("loaded", [True, {}])', "")

    async def act(diary: Diary) -> None:
        await until(lambda: "admitted" in diary.of(2))

    assert kept(tmp_path, program + serves, act) == 0
    noted = Diary(tmp_path).of(2)
    second = noted[noted.index("begins and waits") :]
    assert second[:2] == ["begins and waits", f"loads {other}."]
    assert "admitted" not in second[: second.index("begins and waits", 1)]
    assert "admitted" in second[second.index("begins and waits", 1) :]
    assert Diary(tmp_path).of(1).count("begins") == 1


def test_nobody_waits_long_while_all_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often frontends died: where none is left, the next one is started soon."""
    monkeypatch.setattr("service.frontends.keeper.MIN_RESTART_S", 10 * LIMIT_S)
    monkeypatch.setattr("service.frontends.keeper.MAX_RESTART_S", 10 * LIMIT_S)
    dies = """
if open(diary.name).read().count("begins") < 3:
    say("started")
    os.kill(os.getpid(), 9)
"""

    async def act(diary: Diary) -> None:
        await until(lambda: "peers ready" in diary.of(1))

    assert kept(tmp_path, dies + SERVES, act, 1, look_s=0.01) == 0


@pytest.mark.parametrize(("end", "status"), [("sys.exit(2)", 2), ("os.abort()", 1)])
def test_what_never_came_up_ends_the_service(tmp_path: Path, end: str, status: int) -> None:
    """A first frontend that ends before it said that its settings are sound is not started again, nor is any other."""

    assert kept(tmp_path, end, None) == status
    assert Diary(tmp_path).of(1) == ["begins"]
    assert Diary(tmp_path).of(2) == []


def test_a_stop_before_anything_began(tmp_path: Path) -> None:
    """A signal that comes while the first frontend is started reaches it."""

    async def act(diary: Diary) -> None:
        await asyncio.sleep(0)

    assert kept(tmp_path, SERVES, act) == 0
    assert Diary(tmp_path).of(2) == []


SCRAPES = """
say("started")
say("loaded", [True, {}])
answered = 0
while (message := receive_now(sock)):
    kind, content = message
    if kind == "peers" and content == "ready" and number == 1 and not answered:
        say("scrape", [7])
    elif kind == "report" and number != SILENT:
        say("report", [content[0], [["t", "T.", "counter", [["t_total", {}, number]]]]])
    elif kind == "scrape":
        answered = 1
        text = dict(line.rsplit(" ", 1) for line in content[1].splitlines() if line and line[0] != "#")
        shown = [text.get(name, "-") for name in ("t_total", "sidetok_frontends", "sidetok_frontends_reported")]
        note(f"{content[0]} {' '.join(shown)}")
        if shown[2] != f"{3.0 - bool(SILENT)}":
            say("scrape", [7])  # the machine was too busy
    elif kind == "shut":
        break
"""


@pytest.mark.parametrize(("silent", "noted"), [(0, "7 6.0 3.0 3.0"), (3, "7 3.0 3.0 2.0")])
def test_a_scrape(tmp_path: Path, silent: int, noted: str) -> None:
    """Whoever asks gets the sums of all; one that does not answer is named by their number, and holds nobody up."""

    async def act(diary: Diary) -> None:
        await until(lambda: noted in diary.of(1))

    assert kept(tmp_path, SCRAPES.replace("SILENT", str(silent)), act, 3) == 0


ORPHANS = """
import ctypes, os, subprocess, sys, time
from service.frontends.keeper import reap_orphans
PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
reap_orphans(())
leaves = "import os, sys; pid = os.fork(); print(pid) if pid else os._exit(0)"
own = subprocess.Popen([sys.executable, "-c", ""])
orphan = int(subprocess.run([sys.executable, "-c", leaves], capture_output=True, check=True).stdout)
os.waitid(os.P_PID, orphan, os.WEXITED | os.WNOWAIT)
os.waitid(os.P_PID, own.pid, os.WEXITED | os.WNOWAIT)
deadline = time.monotonic() + 20
while os.path.exists(f"/proc/{orphan}") and time.monotonic() < deadline:
    reap_orphans({own.pid})
    own.poll()
print(os.path.exists(f"/proc/{orphan}"), own.returncode)
"""


def test_what_a_frontend_left_behind_is_reaped() -> None:
    """Where orphans come to the keeper they do not stay as zombies, and the ends of frontends are left to who waits."""
    done = subprocess.run([sys.executable, "-c", ORPHANS], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False 0\n"


def test_a_frontend_without_its_keeper_ends() -> None:
    """One whose keeper is gone, or another process, ends before it loads anything."""
    command = [*python_command("service.frontends.process"), "-1", "1"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}, capture_output=True, text=True)
    assert done.returncode == 0
    assert "dispatcher.gpu.child" in done.stderr
    assert "uvicorn" not in done.stderr


def has_ended(pid: int) -> bool:
    """Whether nothing of a process is left but perhaps its exit status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_the_end_of_a_frontend_is_seen_by_who_waits() -> None:
    """Killing one that is dead already takes its exit status from nobody."""

    async def test() -> None:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "import sys; sys.exit(3)")
        channel: Any = None
        one = Kept(1, False, process, channel)
        # Without a turn of the loop, which would take notice.
        end_s = time.monotonic() + LIMIT_S
        while not has_ended(process.pid) and time.monotonic() < end_s:
            time.sleep(0.005)
        one.kill()
        assert await one.ended() == 3

    asyncio.run(test())
