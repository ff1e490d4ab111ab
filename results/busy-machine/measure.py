"""How long do steps take beside other work, and what do waiting threads cost?

    python results/busy-machine/measure.py [OUTPUT.json]

Forward passes (one image of 256x256) and training steps (four of 128x128) of MSHNet on all cores,
beside neighbours of several kinds, with torch's OpenMP threads waiting at barriers in several ways.
Ways alternate within a neighbour, two rounds each. Milliseconds: median, 90th percentile, most.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

WAYS = {
    "default": {},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
    "spin 1,000": {"GOMP_SPINCOUNT": "1000"},
    "spin 10,000": {"GOMP_SPINCOUNT": "10000"},
    "spin 100,000": {"GOMP_SPINCOUNT": "100000"},
    "one thread": {"OMP_NUM_THREADS": "1"},
    "ours": {"OURS": "1"},  # what mshnet does: it spins briefly, and uses the threads that are free
}
BUSY = [sys.executable, "-c", "while True: pass"]
PIP = [
    *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
    *("--force-reinstall", "--no-deps", "--target"),
]
OTHER = "import torch; x = torch.ones(1024, 1024)\nwhile True: x @ x"
ROUNDS, SECONDS = 2, 6.0


def neighbours(folder: str) -> dict[str, list[tuple[list[str], int]]]:
    "Commands beside which is measured, each with its niceness; pip and numpy as a real install."
    pip = ["sh", "-c", " ".join(["while true; do", *PIP, f"{folder}/pip", "numpy; done"])]
    return {
        "nothing": [],
        "one busy process": [(BUSY, 0)],
        "two busy processes": [(BUSY, 0)] * 2,
        "one, priority 19": [(BUSY, 19)],
        "two, priority 19": [(BUSY, 19)] * 2,
        "pip install": [(pip, 0)],
        "another torch": [([sys.executable, "-c", OTHER], 0)],
    }


def measure() -> dict[str, list[float]]:
    "Times of forward passes and of training steps in this process, in milliseconds."
    ours = "OURS" in os.environ
    if ours:
        import mshnet  # noqa: F401  before torch, which reads its settings of threads once
    import torch

    from mshnet.cpu import use_cpu_passes
    from mshnet.device import open_device, update
    from mshnet.loss import mshnet_loss
    from mshnet.model import MSHNet

    threads = torch.get_num_threads()
    device = open_device("cpu")  # which looks at the neighbours, as each epoch does
    if not ours:
        torch.set_num_threads(threads)
    model = device.to_device(use_cpu_passes(MSHNet()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    image = device.transfer(torch.randn(1, 3, 256, 256))
    batch, mask = device.transfer(torch.randn(4, 3, 128, 128)), torch.zeros(4, 1, 128, 128)
    mask[..., 60:64, 60:64] = 1

    def forward() -> None:
        with torch.no_grad(), device.autocast():
            model(image)

    def step() -> None:
        with device.autocast():
            masks, logits = model(batch)
            loss = mshnet_loss(masks, logits, mask, "soft_iou+bce").mean()
        update(device, loss, optimizer)

    model.eval()
    passes = timed(forward)
    model.train()
    return {"forward": passes, "step": timed(step)}


def timed(work) -> list[float]:
    "Milliseconds of as many calls as half of the time allows, after two that do not count."
    for _ in range(2):
        work()
    times, end = [], time.perf_counter() + SECONDS / 2
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - start))
    return times


def beside(commands: list[tuple[list[str], int]]) -> dict[str, dict[str, list[float]]]:
    "Times of each way beside some processes."
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    started = [
        subprocess.Popen(
            ["nice", "-n", str(priority), *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=clean,
        )
        for words, priority in commands
    ]
    found = {way: {"forward": [], "step": []} for way in WAYS}
    try:
        for _ in range(ROUNDS):
            for way, settings in WAYS.items():
                done = subprocess.run(
                    [sys.executable, __file__, "--measure"],
                    env=clean | settings,
                    capture_output=True,
                    text=True,
                    check=True,
                )
                for name, times in json.loads(done.stdout.splitlines()[-1]).items():
                    found[way][name] += times
    finally:
        for process in started:
            os.killpg(process.pid, 9)
            process.wait()
    return found


def summary(times: list[float]) -> dict[str, float]:
    "Median, 90th percentile and most, in milliseconds."
    times = sorted(times)
    return {
        "median": round(statistics.median(times), 1),
        "p90": round(times[int(0.9 * (len(times) - 1))], 1),
        "most": round(times[-1], 1),
        "count": len(times),
    }


def main(output: str) -> None:
    "Measure everything, keep it, print two tables: the median, and the most in parentheses."
    import tempfile

    import torch

    from mshnet.run import environment

    table = {"environment": environment(f"cpu, torch {torch.__version__}"), "times": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name, commands in neighbours(folder).items():
            table["times"][name] = {
                way: {what: summary(times) for what, times in each.items()}
                for way, each in beside(commands).items()
            }
            print(f"measured beside {name}", file=sys.stderr, flush=True)
    for what in ("forward", "step"):
        print(f"\n**{what}**\n\n| beside | {' | '.join(WAYS)} |\n|---|{'---|' * len(WAYS)}")
        for name, ways in table["times"].items():
            cells = [
                f"{each[what]['median']:.0f} ({each[what]['most']:.0f})" for each in ways.values()
            ]
            print(f"| {name} | {' | '.join(cells)} |")
    if output:
        Path(output).write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["--measure"]:
        print(json.dumps(measure()))
    else:
        main(sys.argv[1] if len(sys.argv) > 1 else "")
