"""The demo: the local runner, headless, on synthetic scenes. `make demo` calls it.

    python tools/demo.py [FOLDER] [SETTING=VALUE ...]

First it marks the targets of a scene by the weights that come with mshnet: FOLDER/first_look.png.
Then it trains: FOLDER/local.ipynb (executed) and FOLDER/run/ (default: demo/). On a slow CPU it
trains for fewer epochs, as many as take three minutes by three measured steps. Called again it goes
on, or shows what is there. Settings are those of the notebook, as in `demo.py quickly epochs=2`.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import papermill
from papermill.exceptions import PapermillExecutionError

from mshnet import find_targets
from mshnet.core import configure
from mshnet.device import device_for
from mshnet.task import make_task

TOP = Path(__file__).resolve().parent.parent
SECONDS, FEWEST = 170, 3  # of the training; epochs that are trained on any machine


def main(words: list[str]) -> int:
    "Run the demo; its last line is the score line."
    folders = [word for word in words if "=" not in word]
    folder = Path(folders[0] if folders else "demo")
    settings: dict[str, Any] = dict(word.split("=", 1) for word in words if "=" in word)
    run, notebook = folder / "run", folder / "local.ipynb"
    folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    find_targets(device="cpu").save(folder / "first_look.png")
    print(f"marked in {folder / 'first_look.png'}\n", flush=True)
    if "epochs" not in settings:
        settings["epochs"] = epochs_for(run, settings)
    try:
        papermill.execute_notebook(
            str(TOP / "nbs" / "run" / "local.ipynb"),
            str(notebook),
            {"device": "cpu", **settings, "output_dir": str(run)},
            progress_bar=False,
            stdout_file=sys.stdout,
        )
    except PapermillExecutionError as error:
        print(f"{notebook}: {error.ename}: {error.evalue}", file=sys.stderr)
        return 1
    print(f"\ndone in {time.perf_counter() - start:.0f} s")
    print(f"notebook  {notebook}")
    print(f"pictures  {run / 'figures'}")
    print(json.loads((run / "scores.json").read_text())["line"])
    return 0


def epochs_for(run: Path, settings: dict[str, Any]) -> int:
    "The epochs of a run that is there; else as many as this CPU trains in time, or the preset's."
    if (run / "config.json").exists():
        return int(json.loads((run / "config.json").read_text())["epochs"])
    config = configure({"preset": "quick", "device": "cpu", **settings})
    seconds = seconds_of_epoch(make_task(config))
    epochs = max(FEWEST, min(config.epochs, int(SECONDS / seconds)))
    print(f"training MSHNet on synthetic scenes, on the CPU: {epochs} epochs of {seconds:.0f} s")
    if epochs < config.epochs:
        print(f"  ({config.epochs} on a faster one, and a better score; epochs={config.epochs})")
    return epochs


def seconds_of_epoch(task: Any) -> float:
    "The time of an epoch and its scoring, by the shorter of two steps after a first one."
    device, data = device_for(task.config), task.splits()
    model = device.to_device(task.model()).train()
    rows = task.plan(data["train"], 0)
    times = []
    for batch in rows[:3]:
        start = time.perf_counter()
        with device.autocast():
            loss = task.loss(model, task.batch(data["train"], batch, 0), "full")
        loss.backward()
        times.append(time.perf_counter() - start)
    images = len(data["test"]) / 3  # scoring one takes a third of the time
    return min(times[1:] or times) * (len(rows) + images / task.config.batch_size)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
