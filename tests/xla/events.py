"Train event cameras for three epochs: events.py FOLDER DEVICE MICRO_BATCH."

import json
import sys
import warnings
from pathlib import Path

from mshnet.events.events_config import EventsConfig
from mshnet.train import train
from mshnet.xla import host_operations, xla_counts

folder, device = Path(sys.argv[1]), sys.argv[2]
settings = {
    "recordings": 40,
    "dt": "60ms",
    "tau": "300ms",
    "width": 4,
    "features": 8,
    "d_model": 8,
    "layers": 1,
}
settings |= {"epochs": 3, "eval_every": 1, "batch_size": 16}
settings |= {"micro_batch": int(sys.argv[3]), "precision": "fp32", "device": device}
config = EventsConfig(**settings, output_dir=str(folder / "run"))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    run = train(config)
seen = {"losses": [e["loss"] for e in run.history], "scores": run.scores["scores"]}
seen["again"] = [str(w.message) for w in caught if "compiled" in str(w.message)]
if device == "xla":
    seen |= {"host": sorted(host_operations()), "programs": xla_counts()["programs"]}
(folder / "seen.json").write_text(json.dumps(seen))
