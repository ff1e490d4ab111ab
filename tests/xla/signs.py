"Train sign language for three epochs: signs.py FOLDER DEVICE NETWORK."

import json
import sys
import warnings
from pathlib import Path

from mshnet.signs.signing import Signs
from mshnet.signs.signs_config import SignsConfig
from mshnet.train import train
from mshnet.xla import host_operations, xla_counts

folder, device = Path(sys.argv[1]), sys.argv[2]
settings = {"network": sys.argv[3], "hidden": 16, "signs": 4, "sentences": 16, "dropout": 0.0}
settings |= {
    "epochs": 3,
    "eval_every": 1,
    "batch_size": 8,
    "buckets": 1,
    "rescale": 0.0,
    "max_frames": 48,
}
settings |= {"scale": 8.0, "distil_weight": 1.0, "lr": 2e-4, "precision": "fp32", "ema": 0.5}
if sys.argv[3] == "tfnet":
    settings["backbone"] = "small"
config = SignsConfig(**settings, device=device, output_dir=str(folder / "run"))
Signs.report = lambda *_: None  # no pictures
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    run = train(config)
seen = {"losses": [e["loss"] for e in run.history], "scores": run.scores["scores"]}
seen["again"] = [str(w.message) for w in caught if "compiled" in str(w.message)]
if device == "xla":
    seen |= {"host": sorted(host_operations()), "programs": xla_counts()["programs"]}
(folder / "seen.json").write_text(json.dumps(seen))
