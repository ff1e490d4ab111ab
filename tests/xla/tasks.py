"Train tasks: tasks.py FOLDER DEVICE JSON, a list of names and settings; writes FOLDER/seen.json."

import json
import sys
import warnings
from pathlib import Path

from mshnet.core import settings_class
from mshnet.task import make_task
from mshnet.train import train
from mshnet.xla import host_operations, xla_counts


def trained(folder, device, wanted):
    "What each training reports, in a list."
    seen = []
    for number, (name, settings) in enumerate(wanted):
        settings = settings | {"epochs": 3, "precision": "fp32", "device": device}
        config = settings_class(name)(**settings, output_dir=str(folder / f"{device}{number}"))
        type(make_task(config)).report = lambda *_: None  # pictures take long
        before = xla_counts()["programs"] if device == "xla" else 0
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run = train(config)
        found = {"losses": [e["loss"] for e in run.history], "scores": run.scores["scores"]}
        found["again"] = [str(w.message) for w in caught if "compiled" in str(w.message)]
        if device == "xla":
            found["host"] = sorted(host_operations())
            found["programs"] = xla_counts()["programs"] - before
        seen.append(found)
    return seen


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    seen = trained(folder, sys.argv[2], json.loads(sys.argv[3]))
    (folder / "seen.json").write_text(json.dumps(seen))
