"""Each reader with invented files; see fuzz.py. The same ones every time, a few dozen per reader.

MSHNET_FUZZ=2000 tries as many, others every time, and prints the seed that repeats them.
"""

from pathlib import Path

import fuzz
import pytest
from conftest import TOP
from fuzz import READERS, asked, run


@pytest.mark.parametrize("name", READERS)
def test_any_input_gives_a_result_or_a_clear_error(name):
    "No traceback of another kind, no crash, no hang, and no more memory than its kind may take."
    told = run(name, *asked())
    print(told)
    assert told["failures"] == []
    assert told["results"] > 0
    assert told["clear_errors"] > 0


def careless(kind):
    "A reader with a fault, and an input on which it shows."

    def read(value, folder):
        if kind == "another error":
            return {}[value]
        if kind == "two lines":
            raise ValueError("a\nb")
        return len(b"x" * (300 * 2**20))

    return read


@pytest.mark.parametrize(
    ("kind", "said"),
    [("another error", "KeyError"), ("two lines", "short line"), ("memory", "MB more memory")],
)
def test_a_careless_reader_is_found(monkeypatch, kind, said):
    "A property that never fails would prove nothing."
    if kind == "memory" and not Path("/proc/self/clear_refs").exists():
        pytest.skip("this system does not tell")
    monkeypatch.setattr(fuzz, "READERS", {})
    fuzz.reader(fuzz.st.integers, clear=(ValueError,))(careless(kind))
    [told] = [tried(3) for tried in fuzz.READERS.values()]
    assert said in " ".join(told.failures)


def test_a_process_that_dies_is_a_failure(monkeypatch):
    "A crash in a library's C code ends the process, and the tests must go on."
    monkeypatch.setattr(fuzz, "__file__", str(TOP / "tests" / "no-such-file.py"))
    assert "the process ended with 2" in run("image", 1)["failures"][0]
