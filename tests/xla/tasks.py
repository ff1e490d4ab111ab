"Train tasks, those of tests/toys.py too: tasks.py FOLDER DEVICE JSON, settings by name of a task."

import json
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import toys  # noqa: F401  makes itself known

from mshnet.core import settings_class
from mshnet.task import make_task
from mshnet.train import train
from mshnet.xla import host_operations, xla_counts

folder, device, seen = Path(sys.argv[1]), sys.argv[2], {}
for name, settings in json.loads(sys.argv[3]).items():
    settings |= {"epochs": 3, "precision": "fp32", "device": device}
    config = settings_class(name)(**settings, output_dir=str(folder / name))
    if name == "signs":
        type(make_task(config)).report = lambda *_: None  # its pictures take long
    before = xla_counts()["programs"] if device == "xla" else 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = train(config)
    seen[name] = {"losses": [e["loss"] for e in run.history], "scores": run.scores["scores"]}
    seen[name]["again"] = [str(w.message) for w in caught if "compiled" in str(w.message)]
    if device == "xla":
        seen[name]["host"] = sorted(host_operations())
        seen[name]["programs"] = xla_counts()["programs"] - before
(folder / "seen.json").write_text(json.dumps(seen))
