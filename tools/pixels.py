"""Digests of the pixels of the published data sets, by which a download is checked.

    python tools/pixels.py ../shared/data

reads nuaa-sirst, nudt-sirst and irstd-1k there and writes mshnet/lists/NAME-pixels.txt: the name of
each image, six digits of its pixels, six of those of its mask.
"""

import sys
from pathlib import Path

from mshnet.data import FOLDERS
from mshnet.fetch import KNOWN, pixel_digests

LISTS = Path(__file__).resolve().parents[1] / "mshnet" / "lists"


def table(root: Path) -> str:
    "The digests of a data set's folder, one image a line."
    images, masks = next((root / i, root / m) for i, m in FOLDERS if (root / i).is_dir())
    lines = []
    for image in sorted(images.glob("*.png")):
        digits = pixel_digests(image.read_bytes())[0]
        lines.append(f"{image.stem} {digits} {pixel_digests((masks / image.name).read_bytes())[1]}")
    return "\n".join(lines) + "\n"


def main(data: Path) -> None:
    "Write the tables of the three data sets."
    for published in KNOWN:
        name = published.name.lower()
        (LISTS / f"{name}-pixels.txt").write_text(table(data / name), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
