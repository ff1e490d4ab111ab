"Train tomography for three epochs: eit.py FOLDER DEVICE MICRO_BATCH."

import json
import sys
import warnings
from pathlib import Path

from mshnet.eit.eit_config import EitConfig
from mshnet.train import train
from mshnet.xla import host_operations, xla_counts

folder, device = Path(sys.argv[1]), sys.argv[2]
settings = {"tanks": 32, "size": 16, "patch": 2, "scales": 1, "width": 16, "heads": 2, "hints": 1}
settings |= {"epochs": 3, "eval_every": 1, "samples": 2, "sampling_steps": 2}
settings |= {"batch_size": 16, "micro_batch": int(sys.argv[3])}
config = EitConfig(**settings, precision="fp32", device=device, output_dir=str(folder / "run"))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    run = train(config)
seen = {"losses": [e["loss"] for e in run.history], "scores": run.scores["scores"]}
seen["again"] = [str(w.message) for w in caught if "compiled" in str(w.message)]
if device == "xla":
    seen |= {"host": sorted(host_operations()), "programs": xla_counts()["programs"]}
(folder / "seen.json").write_text(json.dumps(seen))
