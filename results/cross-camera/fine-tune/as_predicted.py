"""What `mshnet predict` finds in the 100 images: python as_predicted.py DATA FILE WEIGHTS [WEIGHTS ...].

Each frame at its own size ("one"), and with its half size ("two") by the numbers of the pretrained
weights, which a run inherits from the weights it begins with. By tools/judge.py, which gives Pd
and false alarms a frame by threshold. Writes FILE.
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
pairs = splits(Config(dataset_dir=data, train_list="few.txt", test_list="held.txt"))["test"].pairs
sizes = {"one": (), "two": Detector("pretrained", "cpu").multiscale}
found = {}
for name in weights:
    detector = Detector(name, "cpu", "auto")
    for size, detector.multiscale in sizes.items():
        found[f"{name}, {size}"] = judge.judge(detector, iter(pairs), name)
        print(judge.line(size, found[f"{name}, {size}"]), flush=True)
    Path(file).write_text(json.dumps(found, indent=1) + "\n")
