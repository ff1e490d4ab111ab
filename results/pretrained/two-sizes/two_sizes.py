"""One look at a frame against two: python two_sizes.py DATA [FOLDER].

By tools/judge.py, on a camera that the pretrained weights never saw and on clips that they never
saw: every second image of the training list of IRSTD-1k, and every twentieth frame of two in ten
clips of drone-ir. Then on held-out images of the trained cameras, by tools/pretrain.py. FOLDER gets
that data set.
"""

import itertools
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "tools"))
import judge
import pretrain

from mshnet.evaluate import Detector

LOOKS = ("one", "two")
APART = 5, 9  # of ten clips: not trained on


def main(words: list[str]) -> int:
    "Write unseen.json and held-out.json beside this file."
    data, folder = Path(words[0]), Path(words[1] if len(words) > 1 else "runs/two-sizes")
    detectors = {name: Detector("pretrained", "cpu", "fp32") for name in LOOKS}
    detectors["one"].multiscale = ()
    pretrain.write_pictures(lambda: pretrain.pictures(data), folder)
    held = {name: pretrain.held_out(each, folder) for name, each in detectors.items()}
    (HERE / "held-out.json").write_text(json.dumps(held, indent=1) + "\n")
    unseen = dict[str, dict[str, object]]()
    for sensor in ("irstd-1k", "drone-ir"):
        unseen[sensor] = {}
        for name, each in detectors.items():
            frames = judge.boxed(data / sensor, APART, 20)
            if sensor != "drone-ir":
                frames = itertools.islice(judge.masked(data, sensor), 0, None, 2)
            unseen[sensor][name] = judge.judge(each, frames, sensor)
            print(name, judge.line(sensor, unseen[sensor][name]), flush=True)
    (HERE / "unseen.json").write_text(json.dumps(unseen, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
