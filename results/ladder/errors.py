"Which images and targets hold the wrong pixels of a run? python errors.py RUN [RUN ...]"

import json
import sys
from pathlib import Path

for run in sys.argv[1:]:
    details = json.loads((Path(run) / "details.json").read_text())
    wrong = [each["mask"] + each["pred"] - 2 * each["inter"] for each in details["images"]]
    worst = sum(sorted(wrong)[-10:])
    areas = [each["area"] for each in details["targets"]]
    unseen = [each["area"] for each in details["targets"] if not each["covered"]]
    print(
        f"{run}: {sum(wrong)} wrong pixels, {worst} of them in 10 of {len(wrong)} images, "
        f"{sum(unseen)} in {len(unseen)} targets without a predicted pixel, "
        f"{sum(a for a in unseen if a > 40)} of these in targets above 40 pixels, "
        f"which have {sum(a for a in areas if a > 40) / sum(areas):.2f} of all target pixels"
    )
