"Where the tests find what is not in the project: real images and more golden numbers."

import os
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("MSHNET_SHARED", TOP.parent / "shared"))


@pytest.fixture(scope="session")
def sirst() -> Path:
    "The folder of NUAA-SIRST: 427 real infrared images with masks."
    folder = SHARED / "data" / "nuaa-sirst"
    if not folder.is_dir():
        pytest.skip("needs the NUAA-SIRST images; set MSHNET_SHARED to the folder that holds data/")
    return folder
