"""Five folds over all 1,100 recordings of small N-MNIST, with the default recipe.

    python results/events-folds/folds.py ../shared/data/nmnist-small

Each recording is answered once, by a network that was trained on the other four fifths of its
class. The last epoch counts. Writes folds.json after each fold; a fold that is there stays.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from mshnet.events.events_config import EventsConfig
from mshnet.events.recognition import Events, load_recordings
from mshnet.events.recordings import Frames
from mshnet.task import wilson
from mshnet.train import train

FILE = Path(__file__).with_name("folds.json")


def joined(parts):
    "Both parts of the data set as one."
    names = [f"{part.name}:{name}" for part in parts for name in part.names]
    labels = [label for part in parts for label in part.labels]
    counts = np.concatenate([part.counts for part in parts])
    return Frames("all", parts[0].source, counts, np.arange(len(names)), labels, names, "all")


def divided(labels):
    "The fold of each recording, 0 to 4; each class is spread over all of them."
    fold = np.zeros(len(labels), int)
    for label in range(10):
        rows = np.random.default_rng([0, label]).permutation(np.flatnonzero(labels == label))
        fold[rows] = np.arange(len(rows)) % 5
    return fold


def main(folder):
    "Train and score each fold."
    done = json.loads(FILE.read_text())["folds"] if FILE.exists() else []
    with tempfile.TemporaryDirectory() as tmp:
        config = EventsConfig(dataset_dir=folder, device="cpu", eval_every=20)
        data = joined(list(load_recordings(config, ["train", "test"]).values()))
        fold = divided(np.array(data.labels))
        for k in range(len(done), 5):
            task = Events(config.model_copy(update={"output_dir": f"{tmp}/{k}"}))
            parts = {"train": data.part("train", np.flatnonzero(fold != k))}
            parts["test"] = data.part("test", np.flatnonzero(fold == k))
            task.splits = lambda names=(), parts=parts: parts
            scores = train(task.config, task).scores["scores"]
            done.append({n: round(scores[n], 4) for n in ("samples", "accuracy", "loss", "spikes")})
            right = round(sum(each["accuracy"] * each["samples"] for each in done))
            count = sum(each["samples"] for each in done)
            low, high = (round(v, 4) for v in wilson(right, count))
            whole = {"accuracy": right / count, "accuracy_low": low, "accuracy_high": high}
            content = {"folds": done, "recordings": count, "right": right, **whole}
            FILE.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
