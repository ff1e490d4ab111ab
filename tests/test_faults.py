"""Runs that are killed, cut off and misled: a round of each kind, by the tool that makes them.

`make faults` makes hundreds. The tool forks runs from a process in which torch has one thread, so
it is a process of its own here too.
"""

import subprocess
import sys

import pytest
from conftest import TOP

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(sys.platform == "win32", reason="forks and signals"),
]


def faults(*words, careless=""):
    "Call the tool; its status and its lines."
    program = f"import sys; sys.path[:0] = ['tools']; import faults; {careless}\n"
    program += "sys.exit(faults.main(sys.argv[1:]))"
    line = [sys.executable, "-c", program, *words]
    done = subprocess.run(line, cwd=TOP, capture_output=True, text=True)
    print(done.stdout, done.stderr)
    return done.returncode, done.stdout.splitlines()


def test_nothing_is_lost_whatever_happens():
    "A round of each kind."
    assert faults("--rounds", "1")[1][-1] == "5 rounds: 0 lost, 0 wrong"


def test_a_careless_library_is_found():
    "Rounds that find nothing would prove nothing: here a checkpoint is written in its place."
    careless = "faults.run.write_atomic = lambda path, data, previous=None: open(path, 'wb').write("
    careless += "data if isinstance(data, bytes) else data.encode())"
    words = ("--only", "power_cut", "--rounds", "2", "--seed", "7")
    status, lines = faults(*words, careless=careless)
    assert status == 1
    assert any("  lost " in line for line in lines)
