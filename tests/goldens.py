"The golden files of a workload: what they hold, and the numbers that they are made of."

import json
import zlib

import numpy as np
import pytest
import torch
from conftest import SHARED


class Goldens:
    "The golden files of one workload; without them the tests of a module are skipped."

    def __init__(self, name):
        self.folder = SHARED / "golden" / name
        if not self.folder.is_dir():
            pytest.skip(f"needs golden/{name}; set MSHNET_SHARED", allow_module_level=True)

    def arrays(self, name):
        "The arrays of a file, without its texts."
        found = {k: np.asarray(v) for k, v in np.load(self.folder / name).items()}
        return {k: torch.from_numpy(v) for k, v in found.items() if v.dtype.kind != "U"}

    def listed(self, name):
        "The content of a JSON file."
        return json.loads((self.folder / name).read_text())


def random(tag):
    "The random numbers of a tag."
    return np.random.RandomState((zlib.crc32(tag.encode()) + 1) % 2**32)


def arr(tag, shape, scale=1.0):
    "Normal random numbers, as the golden files are made of."
    return torch.from_numpy((random(tag).standard_normal(shape) * scale).astype(np.float32))


def weight(key, shape):
    "The golden value of a weight of this name, where convolutions and normalisations are usual."
    if key.endswith("num_batches_tracked"):
        return torch.tensor(0)
    if key.endswith("running_var"):
        return arr(key, shape, 0.1).abs() + 1
    if key.endswith("running_mean"):
        return arr(key, shape, 0.1)
    if len(shape) > 1:
        return arr(key, shape, np.sqrt(2 / np.prod(shape[1:])))
    return 1 + arr(key, shape, 0.1) if key.endswith(".weight") else arr(key, shape, 0.05)


def close(found, wanted, most=2e-6):
    "Equal up to rounding."
    assert (found.detach() - wanted).abs().max() < most


def entries(model):
    "Names, shapes and types of a model's weights, in order."
    state = model.state_dict().items()
    return [[k, list(v.shape), str(v.dtype).split(".")[1]] for k, v in state]
