"""What `mshnet predict` finds in test images: python as_predicted.py DATA FILE WEIGHTS [WEIGHTS ...].

Of the list held.txt, where DATA has it, else of its test list.

Each frame at its own size ("one"), with its half size ("two") by the numbers of the pretrained
weights, which a run inherits from the weights it begins with, and at half its size only ("half"),
as a run trained on it at 256x256. By tools/judge.py, which gives Pd and false alarms a frame by
threshold. Writes FILE.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))
import judge

from mshnet import Config
from mshnet.data import splits
from mshnet.evaluate import Detector

data, file, *weights = sys.argv[1:]
few = Path(data, "held.txt").exists()
lists = {"train_list": "few.txt", "test_list": "held.txt"} if few else {}
pairs = splits(Config(dataset_dir=data, **lists))["test"].pairs
sizes = {"one": (), "two": Detector("pretrained", "cpu").multiscale, "half": (0, 1, 0, 2)}
found = {}
for name in weights:
    detector = Detector(name, "cpu", "auto")
    for size, detector.multiscale in sizes.items():
        found[f"{name}, {size}"] = judge.judge(detector, [("", *pair) for pair in pairs], name)
        print(judge.line(size, found[f"{name}, {size}"]), flush=True)
    Path(file).write_text(json.dumps(found, indent=1) + "\n")
