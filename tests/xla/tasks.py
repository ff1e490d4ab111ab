"""Train the toys of tests/toys.py: tasks.py FOLDER DEVICE."""

import json
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import toys

from mshnet.core import settings_class
from mshnet.train import train
from mshnet.xla import xla_counts

folder, device = Path(sys.argv[1]), sys.argv[2]
seen = {}
for name in toys.NAMES:
    settings = {"epochs": 3, "batch_size": 8, "precision": "fp32", "device": device}
    config = settings_class(name)(**settings, output_dir=str(folder / name))
    before = xla_counts()["programs"] if device == "xla" else 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = train(config)
    programs = xla_counts()["programs"] - before if device == "xla" else 0
    again = [str(w.message) for w in caught if "compiled" in str(w.message)]
    losses = [entry["loss"] for entry in run.history]
    seen[name] = {"losses": losses, "scores": run.scores["scores"], "again": again}
    seen[name] |= {"programs": programs}
(folder / "seen.json").write_text(json.dumps(seen))
