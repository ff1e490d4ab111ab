"""Our forward solver beside pyEIT's, on pyEIT's meshes: 1,000 samples each, in turns.

    python results/eit-forward/measure.py       needs: pip install pyeit
"""

import json
import platform
import time
import warnings
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from mshnet.eit.tank import ELECTRODES, Mesh, Tank

TURNS, SAMPLES = 5, 200


def both(h0):
    "pyEIT's solver, and ours on the same mesh."
    from pyeit import mesh
    from pyeit.eit import protocol
    from pyeit.eit.fem import EITForward

    theirs = mesh.create(ELECTRODES, h0=h0)
    order = protocol.create(ELECTRODES, dist_exc=1, step_meas=1, parser_meas="std")
    parts = theirs.node[:, :2], theirs.element.astype(int), theirs.el_pos.astype(int)
    return EITForward(theirs, order), Tank(Mesh(*map(torch.tensor, parts)))


def seconds(work):
    "Processor seconds of this process, and the result."
    start = time.process_time()
    found = work()
    return time.process_time() - start, found


def measured(h0):
    "Times of one mesh."
    theirs, ours = both(h0)
    triangles = len(ours.mesh.triangles)
    drawn = np.random.default_rng(0).normal(size=(TURNS, SAMPLES, triangles))
    turns, worst = [], 0.0
    ours.voltages(torch.tensor(np.exp(drawn[0, :32])))
    for sigma in np.exp(drawn):
        theirs_s, want = seconds(lambda s=sigma: np.stack([theirs.solve_eit(x) for x in s]))
        ours_s, got = seconds(lambda s=sigma: ours.voltages(torch.from_numpy(s)).numpy())
        worst = max(worst, float(np.abs(got - want).max() / np.abs(want).max()))
        turns.append({"pyeit": round(theirs_s, 3), "ours": round(ours_s, 3)})
    ratio = float(np.median([t["pyeit"] / t["ours"] for t in turns]))
    sizes = {"nodes": len(ours.mesh.nodes), "triangles": triangles}
    return {**sizes, "times_faster": round(ratio, 1), "largest_difference": worst, "turns": turns}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    about = {
        "what": f"processor seconds of one thread, {TURNS} turns of {SAMPLES} samples each",
        "pyeit": version("pyeit"),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    found = {**about, "meshes": [measured(h0) for h0 in (0.1, 0.08)]}
    file = Path(__file__).with_name("forward.json")
    file.write_text(json.dumps(found, indent=1) + "\n")
    print(file.read_text())
