"""Each reader with invented files; see fuzz.py. The same ones every time, a few dozen per reader.

MSHNET_FUZZ=2000 tries as many, others every time, and prints the seed that repeats them.
"""

import mmap
import os
import random
from pathlib import Path

import fuzz
import pytest
from conftest import TOP

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("name", fuzz.READERS)
def test_any_input_gives_a_result_or_a_clear_error(name):
    "No traceback of another kind, no crash, no hang, and no more memory than its kind may take."
    often = int(os.environ.get("MSHNET_FUZZ") or 0)
    seed = random.SystemRandom().randrange(1, 2**31) if often else None
    print(found := fuzz.run(name, often or fuzz.EXAMPLES, seed))
    assert found["failures"] == []
    assert found["results"] > 0
    assert found["clear errors"] > 0


def careless(kind):
    "A reader with a fault, and an input on which it shows."

    def read(value, folder):
        if kind == "another error":
            return {}[value]
        if kind == "two lines":
            raise ValueError("a\nb")
        pages = mmap.mmap(-1, 300 * 2**20)  # new ones; malloc might reuse what this process holds
        pages[:: mmap.PAGESIZE] = bytes(len(pages) // mmap.PAGESIZE)
        return len(pages)

    return fuzz.Reader(read, fuzz.st.integers, lambda: [0], ValueError)


@pytest.mark.parametrize(
    ("kind", "reported"),
    [("another error", "KeyError"), ("two lines", "short line"), ("memory", "MB more memory")],
)
def test_a_careless_reader_is_found(kind, reported):
    "A property that never fails would prove nothing."
    if kind == "memory" and not Path("/proc/self/clear_refs").exists():
        pytest.skip("this system does not report it")
    assert reported in " ".join(fuzz.try_reader(careless(kind), 3)["failures"])


def test_a_process_that_dies_is_a_failure(monkeypatch):
    "A crash in a library's C code ends the process, and the tests must continue."
    monkeypatch.setattr(fuzz, "__file__", str(TOP / "tests" / "no-such-file.py"))
    assert "it ended with 2" in fuzz.run("weights", 1)["failures"][0]
