"""The small pictures of three tasks in README. For whoever changes them or the figures they show.

    python tools/thumbnails.py

Cuts a part out of the first figure of a page and writes it to nbs/images/NAME.jpg.
"""

import json
from pathlib import Path

from outputs import picture
from PIL import Image

NBS = Path(__file__).resolve().parent.parent / "nbs"
HEIGHT = 110
PARTS = {  # page, and the part of its figure: left, top, right, bottom, each from 0 to 1
    "eit": ("eit/06_reconstruction", (0.0, 0.23, 0.44, 0.93)),
    "events": ("events/04_recognition", (0.068, 0.085, 0.312, 0.225)),
    "signs": ("signs/03_clips", (0.0745, 0.042, 0.405, 0.262)),
}


def first_figure(page: str) -> Image.Image:
    "The first PNG among the outputs of a page."
    cells = json.loads((NBS / f"{page}.ipynb").read_text(encoding="utf-8"))["cells"]
    outputs = (output.get("data", {}) for cell in cells for output in cell.get("outputs", []))
    png = next(data["image/png"] for data in outputs if "image/png" in data)
    return picture(png).convert("RGB")


def main() -> None:
    "Cut, resize and save each part."
    for name, (page, part) in PARTS.items():
        figure = first_figure(page)
        left, top, right, bottom = part
        wide, high = figure.size
        small = figure.crop((left * wide, top * high, right * wide, bottom * high))
        small = small.resize((round(HEIGHT * small.width / small.height), HEIGHT))
        small.save(NBS / f"images/{name}.jpg", quality=85, optimize=True)


if __name__ == "__main__":
    main()
