# %% tags=["install"]
# @title Install { display-mode: "form" }
import glob
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# From the newest wheel: beside the notebook, in Colab, in your Drive or attached on Kaggle;
# else from the repository in which the notebook lies; else from its address
if not list(importlib.metadata.distributions(name="mshnet")):
    _folders = ["", "/content/", "/content/drive/MyDrive/"]
    _folders += [f"/kaggle/input/{_deep}/" for _deep in ("*", "*/*", "*/*/*")]
    _wheels = sorted(
        (Path(_name) for _folder in _folders for _name in glob.glob(f"{_folder}mshnet-*.whl")),
        key=lambda wheel: (
            [int(number) for number in re.findall(r"\d+", wheel.name.split("-")[1])],
            wheel.stat().st_mtime,
        ),
    )
    _above = [Path.cwd(), *Path.cwd().parents]
    _clones = [_top for _top in _above if (_top / "nbs/run/runner.py").exists()]
    if _wheels:
        _source = [str(_wheels[-1])]
        if "(" in _wheels[-1].name:  # of a second download: pip refuses this name
            _name = re.sub(r" ?\(\d+\)", "", _wheels[-1].name)
            _source = [str(shutil.copy(_wheels[-1], Path(tempfile.mkdtemp(), _name)))]
    elif _clones:
        _source = ["-e", f"{_clones[0]}[notebook]"]
        sys.path.append(str(_clones[0]))  # because a kernel that runs misses what -e adds
    else:
        _source = ["mshnet @ git+https://github.com/{{repo}}@{{branch}}"]
    if "/your-username/" in _source[0]:
        raise ModuleNotFoundError(
            "mshnet has no address yet, and no wheel of it was found: run make wheel in its "
            "folder, then upload the file to /content in Colab, attach it on Kaggle, or put it "
            "beside this notebook"
        )
    _pip, _as_text = [sys.executable, "-m", "pip"], {"capture_output": True, "text": True}
    _kept = re.compile("(torch|torchvision|torch.xla|numpy|ipython)=", re.IGNORECASE)
    _list = subprocess.run([*_pip, "list", "--format=freeze"], **_as_text)
    _file = Path(tempfile.mkdtemp(), "kept.txt")
    _file.write_text("\n".join(filter(_kept.match, _list.stdout.splitlines())))
    _done = subprocess.run([*_pip, "install", "-c", str(_file), *_source], **_as_text)
    if _list.returncode or _done.returncode:
        raise ModuleNotFoundError(
            f"pip did not install mshnet from {_source[-1]} (on Kaggle: switch Internet on); it "
            f"reported: {(_list.stderr + _done.stdout + _done.stderr)[-1000:]}"
        )
    importlib.invalidate_caches()
    print(f"installed mshnet from {_source[-1]}")
else:
    print(f"mshnet {importlib.metadata.version('mshnet')} is installed already")
