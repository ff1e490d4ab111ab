"The doctor: each fault of a machine is one line with its remedy, and none stops the others."

import errno
import os
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from conftest import make_dataset, put_drive

from mshnet import doctor
from mshnet.cli import main
from mshnet.core import UserError
from mshnet.device import Cuda, Device
from mshnet.files import free_memory
from mshnet.places import KAGGLE, Place
from mshnet.recipe import Config

GB = 2**30


def ask(subject, **settings):
    "The level and the text of one answer, for a run on the CPU."
    line = doctor._line(doctor._Checkup(Config(**{"device": "cpu", **settings})), subject)
    return line.level, line.text


def warns(*_):
    "What torch does with a driver that is too old."
    import warnings

    warnings.warn("CUDA initialization: the driver is too old\nmore", stacklevel=2)
    return Device("fp32")


# What this machine is imitated to be: values of attributes of the modules below
PLAIN = {
    "doctor._find_nvidia": list,
    "doctor.tpu_chips": list,
    "doctor.busy_cores": lambda seconds: 0.1,
    "doctor.core_count": lambda: 4,
    "doctor.USUAL_THREADS": 4,
    "doctor.shutil.disk_usage": lambda folder: SimpleNamespace(free=50 * GB),
    "doctor.free_memory": lambda: 16 * GB,
    "places._disk_of": lambda path: path,
}
T4 = {"doctor._find_nvidia": lambda: ["Tesla T4", "Tesla T4"]}
T4 |= {"torch.cuda.is_available": lambda: False, "torch.version.cuda": "13.0"}
NO_CUDA = T4 | {"torch.version.cuda": None}
TPU = {"doctor.tpu_chips": lambda: [("v5e", 16)], "doctor.installed": lambda name: None}
OTHER_XLA = TPU | {"doctor.installed": lambda name: "1.0.0"}
LOADED = {"doctor.installed": lambda name: "2.13.0", "torch.__version__": "2.9.0+cu126"}
SAME = {"doctor.installed": lambda name: "2.14.0", "torch.__version__": "2.14.0+cu126"}
BUSY = {"doctor.busy_cores": lambda seconds: 0.9}
ENOUGH = BUSY | {"doctor.USUAL_THREADS": 3}
STUCK = {"doctor.open_device": Mock(side_effect=RuntimeError("no\nmore"))}
WARNS = {"doctor.open_device": warns}
CLOUD = {"doctor.where": lambda: KAGGLE, "doctor.open_device": lambda *_: Device("fp32")}
SLOW = {"device.Device.fastest": lambda self: "fp32"}
LITTLE = {"doctor.free_memory": lambda: GB / 2}
UNKNOWN = {"doctor.free_memory": lambda: float("inf")}
ROOM = {"doctor.shutil.disk_usage": lambda folder: SimpleNamespace(free=0.5 * GB)}
FULL = {"doctor.shutil.disk_usage": lambda folder: SimpleNamespace(free=0.1 * GB)}
RUN, BESIDE = {"output_dir": "a/run"}, {"output_dir": "runs/mine", "mirror_dir": "runs"}

FINDINGS = [  # the machine, the subject, settings, the level, a part of the text
    ({}, "machine", {}, "ok", "of 4 cores busy"),
    (BUSY, "machine", {}, "warning", "training is slower: stop them, or wait"),
    (ENOUGH, "machine", {}, "ok", ""),
    (STUCK, "accelerator", {}, "error", "(RuntimeError: no); restart the machine, or use"),
    ({}, "accelerator", {"device": "cuda:99"}, "error", "use"),
    (WARNS, "accelerator", {}, "warning", "it warns: CUDA initialization: the driver is too old ("),
    (SLOW, "accelerator", {"precision": "bf16"}, "warning", "--precision fp32"),
    (CLOUD, "accelerator", {"device": "auto"}, "warning", "choose a GPU in the settings"),
    (CLOUD | WARNS, "accelerator", {"device": "auto"}, "warning", "it warns: CUDA initialization"),
    (NO_CUDA, "build", {"device": "auto"}, "warning", "has Tesla T4, but torch"),
    (NO_CUDA, "build", {}, "ok", ""),
    (T4, "build", {"device": "auto"}, "warning", "does not get it"),
    (T4, "build", {"device": "cuda"}, "error", "does not get it"),
    (TPU, "build", {"device": "auto"}, "error", "torch_xla is not installed"),
    (OTHER_XLA, "build", {"device": "xla"}, "error", "do not belong together"),
    (TPU, "build", {}, "ok", ""),
    (LOADED, "build", {}, "error", "restart the kernel"),
    (SAME, "build", {}, "ok", ""),
    ({}, "accelerator", {}, "ok", "; 16.0 GB of memory free"),
    (LITTLE, "accelerator", {}, "warning", "0.5 GB of memory free; free some"),
    (UNKNOWN, "accelerator", {}, "ok", ""),
    ({}, "disk", RUN, "ok", "50 GB free for a/run"),
    (ROOM, "disk", RUN, "warning", "--output-dir"),
    (FULL, "disk", RUN, "error", "--output-dir"),
    ({}, "disk", {"output_dir": "file/run"}, "error", "(Not a directory)"),
    ({}, "data", {"dataset_dir": "set"}, "ok", "train: "),
    ({}, "data", {"dataset_dir": "sets"}, "error", "did you mean"),
    ({}, "session", RUN, "ok", "no backup"),
    ({}, "session", {"mirror_dir": "copies"}, "ok", "50 GB free"),
    ({}, "session", {"mirror_dir": "drive"}, "warning", "mounted in Colab only"),
    ({}, "session", BESIDE, "error", "is the run folder; use"),
    ({}, "session", {"max_hours": 3.0}, "ok", "stops by itself after 3 hours"),
]


@pytest.fixture
def machine(monkeypatch, tmp_path):
    "Sets what a machine is imitated to be; first one where all is well, with a data set."
    make_dataset(tmp_path / "set")
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)

    def imitate(values):
        for name, value in values.items():
            monkeypatch.setattr(name if name.startswith("torch") else f"mshnet.{name}", value)

    imitate(PLAIN)
    return imitate


@pytest.mark.parametrize(("values", "subject", "settings", "level", "said"), FINDINGS)
def test_each_fault_has_its_level_and_its_remedy(
    machine, recwarn, values, subject, settings, level, said
):
    "A table of machines; no warning of torch is left over."
    machine(values)
    found, text = ask(subject, **settings)
    assert (found, said in text, "\n" in text) == (level, True, False), text
    assert not recwarn.list


def test_on_a_machine_where_nothing_is_wrong_every_line_is_ok(machine, monkeypatch, tmp_path):
    "No question finds fault without a cause; the device is opened once, and no file is left."
    opened, real = [], doctor.open_device
    monkeypatch.setattr(doctor, "open_device", lambda *a: opened.append(a) or real(*a))
    before = {path.name for path in tmp_path.iterdir()}
    places = {"output_dir": "run", "mirror_dir": "mirror", "dataset_dir": "set"}
    found = doctor.doctor(Config(device="cpu", precision="fp32", max_hours=3, **places))
    assert [str(line) for line in found.lines if line.level != "ok"] == []
    assert [line.subject for line in found.lines] == list(doctor._CHECKS)
    assert (found.status, len(opened)) == (0, 1)
    assert {path.name for path in tmp_path.iterdir()} == before


def test_a_question_that_fails_leaves_the_others(monkeypatch):
    "An unforeseen machine: its reason is reported, on one line."
    monkeypatch.setattr(doctor.platform, "system", lambda: 1 / 0)
    lines = {line.subject: line for line in doctor.doctor(Config(device="cpu")).lines}
    first = lines.pop("machine")
    assert first.level == "warning" and "ZeroDivisionError: division by zero" in first.text
    assert not [x for x in lines.values() if "\n" in str(x) or "this check" in x.text]


def test_the_status_is_that_of_the_worst_line(capsys, monkeypatch):
    "For scripts."
    for status, level in enumerate(("ok", "warning", "error")):
        answers = {"one": lambda _: ("ok", "fine"), "it": lambda _, it=level: (it, "a finding")}
        monkeypatch.setattr(doctor, "_CHECKS", answers)
        assert main(["doctor", "--device", "cpu"]) == status
        assert capsys.readouterr().out.endswith("a finding\n")


# What the table cannot hold


@pytest.mark.skipif(os.name != "posix", reason="a shell script")
def test_nvidia_smi_is_asked_and_may_be_silent(tmp_path, monkeypatch):
    "Two GPUs, one with a comma in its name; none; an error; no such tool."
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def find(script):
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
        return doctor._find_nvidia()

    assert find("echo 'Tesla T4'; echo 'A, B'") == ["Tesla T4", "A, B"]
    assert find("echo 'No devices were found'; exit 6") == []
    assert find("echo 'Driver/library version mismatch'; exit 18") == []
    monkeypatch.setenv("PATH", "")
    assert doctor._find_nvidia() == []


def test_a_gpu_that_torch_holds_no_programs_for(machine, monkeypatch):
    "torch finds it, and fails in the first operation: an error with torch's own words."
    machine({"torch.cuda.is_available": lambda: True, "torch.cuda.device_count": lambda: 1})
    broken = RuntimeError("CUDA error: no kernel image\nmore")
    monkeypatch.setattr("torch.ones", Mock(side_effect=broken))
    with pytest.raises(UserError, match="no kernel image; see mshnet doctor, or use --device cpu"):
        Cuda()
    level, text = ask("accelerator", device="cuda")
    assert (level, "no kernel image" in text) == ("error", True)


@pytest.mark.skipif(os.name != "posix" or not os.geteuid(), reason="root may write everywhere")
def test_a_folder_of_somebody_else_cannot_be_written(machine, tmp_path):
    (tmp_path / "theirs").mkdir(mode=0o500)
    assert "Permission denied" in ask("disk", output_dir="theirs/a")[1]


def test_a_disk_that_cannot_be_written(machine, monkeypatch):
    "Mounted for reading: run and copies."
    refuse = Mock(side_effect=OSError(errno.EROFS, os.strerror(errno.EROFS)))
    monkeypatch.setattr("pathlib.Path.write_bytes", refuse)
    for subject, name in (("disk", "another --output-dir"), ("session", "use another")):
        level, text = ask(subject, output_dir="run", mirror_dir="copies")
        assert (level, "(Read-only file system); " in text, name in text) == ("error", True, True)


def test_spoilt_data(machine, tmp_path):
    "What training would say of few images; the first finding, and where all are listed."
    assert "there are only" in ask("data", dataset_dir="set", batch_size=64)[1]
    (tmp_path / "set" / "trainval.txt").write_text("ghost\n")
    level, text = ask("data", dataset_dir="set")
    assert (level, "`mshnet data" in text) == ("error", True)


def test_a_containers_limit_counts(tmp_path):
    "But for file caches, which it gives up."
    (tmp_path / "memory.max").write_text("536870912\n")
    (tmp_path / "memory.current").write_text("268435456\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 134217728\n")
    assert free_memory(tmp_path) == 0.375 * GB


def test_in_colab_the_run_ends_with_the_session_unless_it_is_copied(monkeypatch, tmp_path):
    "Drive, however it is written, mounted or not, and the hours of a session."
    drive = tmp_path / "drive" / "MyDrive"
    place = Place("colab", tmp_path, tmp_path / "runs", "nothing is kept", hours=11.5)
    put_drive(monkeypatch, drive.parent)
    for module in ("doctor", "places"):
        monkeypatch.setattr(f"mshnet.{module}.where", lambda *_: place)
    monkeypatch.chdir(tmp_path)
    level, text = ask("session")
    assert (level, "--mirror-dir drive" in text) == ("warning", True)
    assert "stops by itself after 11.5 hours" in text
    assert "use --max-hours 11.5" in ask("session", max_hours=13)[1]
    with monkeypatch.context() as later:
        later.setattr("mshnet.places.session_seconds", lambda: 43_200.0)
        level, text = ask("session", mirror_dir="drive")
        assert level == "warning" and "its 11.5 hours are over; if it has more, use" in text
    for name in ("drive", "drive/MyDrive/copies", str(drive / "copies")):
        level, text = ask("session", mirror_dir=name)
        assert (level, "mount_drive()` in a cell, and allow it" in text) == ("warning", True)
    drive.mkdir(parents=True)
    assert "GB free" in ask("session", mirror_dir="drive")[1]
    level, text = ask("session", mirror_dir=str(tmp_path / "disk"))
    assert level == "warning" and "disk is deleted with the session; use --mir" in text
    place = replace(place, name="kaggle")
    assert f"Save & Run All keeps what is in {tmp_path}" in ask("session")[1]
