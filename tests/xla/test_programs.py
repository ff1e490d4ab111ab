"""What makes XLA compile again: the figure on the page of XLA.

`python tests/xla/test_programs.py` prints the numbers. Its process does not import mshnet.
"""

import ast
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "nbs/31_xla.py"  # has the numbers and draws them


def observe():
    "Programs compiled in each of ten steps, by what changes from step to step."
    import torch
    import torch_xla
    from torch_xla.debug import metrics

    device = torch_xla.device()
    weight, x = torch.randn(64, 64).to(device), torch.randn(8, 64).to(device)
    larger = [torch.randn(9 + i, 64).to(device) for i in range(10)]
    layer = torch.nn.Linear(64, 1).to(device)
    sgd = torch.optim.SGD(layer.parameters(), lr=0.1)
    torch_xla.sync()

    def train(i):
        "A step at another learning rate."
        sgd.param_groups[0]["lr"] = 0.1 / (i + 1)
        sgd.zero_grad()
        layer(x).sum().backward()
        sgd.step()

    def read(i):
        "A value that decides what is computed next."
        total = (x @ weight).exp().sum()
        return total + 1 if total.item() > 0 else total

    steps = {
        "the same operations": lambda i: (x @ weight).relu().sum(),
        "x * number": lambda i: (x @ weight * (0.1 + i)).sum(),
        "SGD, its learning rate": train,
        "loss.item() in the middle": read,
        "x.pow(number)": lambda i: (x @ weight).pow(2.5 + i).sum(),
        "x.roll(number)": lambda i: (x @ weight).roll(i, 1).sum(),
        "x[:, number:]": lambda i: (x @ weight)[:, i : i + 4].sum(),
        "a batch of a new size": lambda i: (larger[i] @ weight).sum(),
    }
    seen = {}
    for name, step in steps.items():
        seen[name] = []
        for i in range(10):
            before = metrics.counter_value("UncachedCompile") or 0
            kept = step(i)  # what nobody keeps is not computed
            torch_xla.sync()
            seen[name].append((metrics.counter_value("UncachedCompile") or 0) - before)
            del kept
    return seen


@pytest.mark.skipif(
    not find_spec("torch_xla"), reason="runs in the other environment: make test-xla"
)
def test_the_figure_of_what_compiles_again():
    "The page on XLA draws these numbers: programs in the first of ten steps, in each later one."
    table = re.search(r"(?s)compiled = (\{.*?\n\})", PAGE.read_text("utf-8"))[1]
    drawn = {k: [first, *[later] * 9] for k, (first, later) in ast.literal_eval(table).items()}
    environ = os.environ | {"PJRT_DEVICE": "CPU"}
    done = subprocess.run([sys.executable, __file__], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == drawn


if __name__ == "__main__":
    os.environ.setdefault("PJRT_DEVICE", "CPU")
    print(json.dumps(observe()))
