"""Runs that are killed, cut off and lied to: one round of each fault, by the tool that makes them.

`make faults` makes hundreds. The tool forks runs from a process in which torch has one thread, so
it is a process of its own here too.
"""

import json
import subprocess
import sys

import pytest
from conftest import TOP

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks and signals")


def faults(folder, *words, careless=""):
    "Call the tool; its status, its summary, and what it printed."
    program = f"import sys; sys.path[:0] = ['tools']; import faults; {careless}\n"
    program += "sys.exit(faults.main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", program, *words, "--fuzz", "0", "--output", str(folder)],
        cwd=TOP,
        capture_output=True,
        text=True,
    )
    summary = folder / "summary.json"
    told = json.loads(summary.read_text()) if summary.exists() else {}
    return done.returncode, told, done.stdout + done.stderr


def test_nothing_is_lost_whatever_happens(tmp_path):
    "A round of each fault, and more of those that kill."
    status, told, said = faults(tmp_path, "--rounds", "5", "--each", "1")
    print(said)
    assert told["bad"] == []
    assert status == 0
    made = sum(kind["rounds"] + kind["skipped"] for kind in told["kinds"].values())
    assert made == 5 + len([kind for kind in told["kinds"] if "kill" not in kind]) - 1
    assert told["killed"] == 5


def test_a_careless_library_is_found(tmp_path):
    "Rounds that find nothing would prove nothing: here a checkpoint is written in its place."
    careless = "faults.run.write_atomic = lambda path, data, previous=None: open(path, 'wb').write("
    careless += "data if isinstance(data, bytes) else data.encode())"
    words = ("--only", "power", "--rounds", "2", "--seed", "3")
    status, told, said = faults(tmp_path, *words, careless=careless)
    print(said)
    assert status == 1
    assert told["lost"] > 0
