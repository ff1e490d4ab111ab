"""Near twins: names of test images whose thumbnail agrees with one of a training image.

python twins.py DATASET > names.txt
Thumbnails of 32x32 pixels, grey, each with mean 0 and length 1; twins correlate above 0.99.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image


def thumbnails(folder: Path, names: list[str]) -> np.ndarray:
    "One row for each image."
    rows, [images] = [], [p for p in map(folder.joinpath, ("images", "IRSTD1k_Img")) if p.exists()]
    for name in names:
        image = (
            Image.open(images / f"{name}.png")
            .convert("L")
            .resize((32, 32), Image.Resampling.BILINEAR)
        )
        row = np.asarray(image, float).ravel()
        row -= row.mean()
        rows.append(row / max(np.linalg.norm(row), 1e-9))
    return np.stack(rows)


folder = Path(sys.argv[1])
train, test = ((folder / f"{part}.txt").read_text().split() for part in ("trainval", "test"))
nearest = (thumbnails(folder, test) @ thumbnails(folder, train).T).max(1)
print("\n".join(name for name, most in zip(test, nearest, strict=True) if most > 0.99))
