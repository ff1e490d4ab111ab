"""Lists of the training images of IRSTD-1k: 40 to train on, 100 others to score.

python lists.py DATA    writes DATA/few.txt and DATA/held.txt; the test list is not read
"""

import random
import sys
from pathlib import Path

data = Path(sys.argv[1])
names = sorted((data / "trainval.txt").read_text().split())
random.Random(0).shuffle(names)
(data / "few.txt").write_text("\n".join(names[:40]) + "\n")
(data / "held.txt").write_text("\n".join(names[-100:]) + "\n")
