"""At what share of the contrast has a grown mask the area of a drawn one? python cuts.py DATA

Masks are grown in the boxes of targets that have a mask. Writes cuts.json beside this file: of
three training lists, by share, the grown pixels per drawn one and the IoU.
"""

import json
import sys
from pathlib import Path

import numpy as np
from continued import grown  # first: it finds tools/
from judge import MASKED, masked
from PIL import Image
from scipy import ndimage

found = {}
for sensor in MASKED:
    sums = {cut: np.zeros(4) for cut in (0.2, 0.3, 0.4, 0.5)}  # common, either, grown, drawn pixels
    for _, image, mask in masked(Path(sys.argv[1]), sensor):
        image = np.asarray(Image.fromarray(image).convert("L"))
        labels, _ = ndimage.label(mask > 0, np.ones((3, 3)))
        for i, (rows, columns) in enumerate(ndimage.find_objects(labels), 1):
            box = rows.start, rows.stop, columns.start, columns.stop
            for cut, total in sums.items():
                own, real = grown(image, box, cut), labels == i
                if own.any():
                    total += (own & real).sum(), (own | real).sum(), own.sum(), real.sum()
    found[sensor] = {
        cut: {"area": round(own / real, 3), "iou": round(both / either, 3)}
        for cut, (both, either, own, real) in sums.items()
    }
text = json.dumps(found, indent=1)
Path(__file__).with_name("cuts.json").write_text(text + "\n")
print(text)
