"What several tests need: where real images lie, and a small data set to write."

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

TOP = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("MSHNET_SHARED", TOP.parent / "shared"))


@pytest.fixture(scope="session")
def sirst() -> Path:
    "The folder of NUAA-SIRST: 427 real infrared images with masks."
    folder = SHARED / "data" / "nuaa-sirst"
    if not folder.is_dir():
        pytest.skip("needs the NUAA-SIRST images; set MSHNET_SHARED to the folder that holds data/")
    return folder


def make_dataset(folder: Path, train: int = 6, test: int = 4, size: int = 32) -> Path:
    "Write a small data set: dim grey noise, a bright 3x3 target in each image, masks of 0 and 255."
    rng = np.random.default_rng(0)
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    for file, part, count in (("trainval.txt", "train", train), ("test.txt", "test", test)):
        names = [f"{part}_{i}" for i in range(count)]
        (folder / file).write_text("".join(f"{name}\n" for name in names))
        for name in names:
            image = rng.integers(20, 60, (size, size), dtype=np.uint8)
            mask = np.zeros((size, size), np.uint8)
            row, col = rng.integers(2, size - 5, 2)
            image[row : row + 3, col : col + 3] = 220
            mask[row : row + 3, col : col + 3] = 255
            Image.fromarray(image).save(folder / "images" / f"{name}.png")
            Image.fromarray(mask).save(folder / "masks" / f"{name}.png")
    return folder
