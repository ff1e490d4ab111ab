"The doctor: each fault of a machine is one line with its remedy, and none stops the others."

import errno
import json
import os
import re
import subprocess
import sys
from configparser import ConfigParser

import plain
import pytest
import torch
from conftest import TOP, make_dataset

from mshnet import doctor
from mshnet.cli import main
from mshnet.core import Config
from mshnet.device import Cuda, Device
from mshnet.files import free_memory
from mshnet.loss import mshnet_loss
from mshnet.places import Place

GB = 2**30


def ask(subject, **settings):
    "The level and the text of one answer, for a run on the CPU."
    checkup = doctor._Checkup(Config(**{"device": "cpu", **settings}))
    return doctor._CHECKS[subject](checkup)


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    "Write a shell script that is found as nvidia-smi."
    if os.name != "posix":
        pytest.skip("a shell script")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def write(script):
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)

    return write


@pytest.fixture
def no_gpu(monkeypatch):
    "A machine with neither GPU nor TPU, whatever this one has."
    monkeypatch.setattr(doctor, "_find_nvidia", lambda: ([], ""))
    monkeypatch.setattr(doctor, "tpu_chips", list)
    monkeypatch.setattr(doctor, "installed", lambda name: None)


@pytest.fixture
def unseen_gpu(monkeypatch, no_gpu):
    "A GPU that the system has and torch for CUDA 13 does not see."
    monkeypatch.setattr(doctor, "_find_nvidia", lambda: (["Tesla T4 (driver 580.1)"], ""))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: 13000, raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def fake_gpu(monkeypatch, capability, builds, free=16):
    "A GPU that torch finds: its compute capability, what torch is built for, and free GB."
    facts = type("Facts", (), {"name": "NVIDIA X", "total_memory": 16 * GB})
    answers = {"is_available": True, "device_count": 1, "get_device_name": "NVIDIA X"}
    answers |= {"get_device_capability": capability, "get_arch_list": builds}
    answers |= {"get_device_properties": facts, "mem_get_info": (free * GB, 16 * GB)}
    for name, value in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, _value=value, **__: _value)
    monkeypatch.setattr(Cuda, "has_bf16", lambda self: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")


# The whole


def test_on_a_machine_where_nothing_is_wrong_every_line_is_ok(monkeypatch, tmp_path, no_gpu):
    "No question finds fault without a cause; the device is opened once, and no file is left."
    usage, opened, real = type("Usage", (), {"free": 50 * GB}), [], doctor.open_device
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr("mshnet.device.free_memory", lambda: 16 * GB)
    monkeypatch.setattr("mshnet.device.Cores.others", lambda self, least=0.0: 0.1)
    monkeypatch.setattr(doctor, "open_device", lambda *a: opened.append(a) or real(*a))
    folder = make_dataset(tmp_path / "set")
    monkeypatch.chdir(tmp_path)
    places = {"output_dir": "run", "mirror_dir": "mirror", "dataset_dir": str(folder)}
    found = doctor.doctor(Config(device="cpu", precision="fp32", max_hours=3, **places))
    assert [str(line) for line in found.lines if line.level != "ok"] == []
    assert [line.subject for line in found.lines] == list(doctor._CHECKS)
    assert (len(found.lines), found.status, len(opened)) == (9, 0, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_every_question_is_one_line_on_this_machine():
    "Whatever this machine is, all are answered."
    found = doctor.doctor(Config(device="cpu"))
    assert not [line for line in found.lines if "\n" in str(line) or "not be answered" in line.text]


def test_a_question_that_fails_leaves_the_others(monkeypatch):
    "An unforeseen machine: its reason is reported, on one line."
    monkeypatch.setattr(doctor.platform, "system", lambda: 1 / 0)
    lines = {line.subject: line for line in doctor.doctor(Config(device="cpu")).lines}
    assert lines["machine"].level == "warning"
    assert "ZeroDivisionError: division by zero" in lines["machine"].text
    assert lines["data"].level == "ok"


def test_json_is_all_that_is_printed(tmp_path):
    "For programs: one object on stdout, warnings elsewhere, the status of the worst line."
    words = ["doctor", "--json", "--device", "cpu", "--warm-epoch", "3"]
    assert main(words) == 2  # a mistake in the flags is no finding
    file = tmp_path / "mine.json"
    file.write_text('{"epochs": 2, "warm_epoch": 3}')
    words = ["doctor", "--json", "--device", "cuda:99", "--config", str(file)]
    done = subprocess.run([sys.executable, "-m", "mshnet", *words], capture_output=True, text=True)
    content = json.loads(done.stdout)
    assert (done.returncode, content["worst"], list(content)) == (2, "error", ["worst", "lines"])
    assert {tuple(line) for line in content["lines"]} == {("level", "subject", "text")}
    assert "warning: warm_epoch=3" in done.stderr


def test_the_status_is_that_of_the_worst_line(capsys, monkeypatch):
    "With and without --json."
    for status, level in enumerate(("ok", "warning", "error")):
        answers = {"one": lambda _: ("ok", "fine"), "it": lambda _, it=level: (it, "a finding")}
        monkeypatch.setattr(doctor, "_CHECKS", answers)
        assert main(["doctor", "--device", "cpu"]) == status
        assert capsys.readouterr().out.endswith("a finding\n")
        assert main(["doctor", "--device", "cpu", "--json"]) == status
        assert json.loads(capsys.readouterr().out)["worst"] == level


# The machine and the device


def test_busy_neighbours_are_a_warning(monkeypatch, no_gpu):
    "Where they take a core that a run has a thread for; not for a GPU."
    monkeypatch.setattr("mshnet.device.Cores.others", lambda self, least=0.0: 0.9)
    monkeypatch.setattr("mshnet.device.Cores.own", lambda self: set(range(16)))
    monkeypatch.setattr(doctor, "USUAL_THREADS", 15)
    assert ask("machine")[0] == "ok"
    monkeypatch.setattr(doctor, "USUAL_THREADS", 16)
    level, text = ask("machine")
    assert level == "warning" and "other programs keep 0.9 of 16 cores busy" in text
    monkeypatch.setattr(Device, "kind", "cuda")
    assert ask("machine")[0] == "ok"


def test_a_device_that_does_not_start_is_an_error_with_its_reason(monkeypatch):
    "A run would meet the same; the other questions are answered all the same."

    def fail(*_):
        raise RuntimeError("CUDA error: unknown error\nCompile with TORCH_USE_CUDA_DSA")

    monkeypatch.setattr(doctor, "open_device", fail)
    found = {line.subject: line for line in doctor.doctor(Config(device="cpu")).lines}
    assert found["accelerator"].level == "error"
    assert "CUDA error: unknown error); restart the machine" in found["accelerator"].text
    assert found["memory"].level == "ok"


def test_what_torch_warns_of_is_part_of_the_line(monkeypatch, recwarn):
    "And does not appear between the lines."
    real = doctor.open_device

    def warn(*words):
        doctor.warnings.warn("CUDA initialization: a long story\nwith a second line", stacklevel=2)
        return real(*words)

    monkeypatch.setattr(doctor, "open_device", warn)
    level, text = ask("accelerator")
    assert (level, "it warns: CUDA initialization: a long story (see" in text) == ("warning", True)
    assert not recwarn.list


def test_bf16_that_is_emulated_is_a_warning(monkeypatch):
    "Asked for by hand on a chip that has none."
    monkeypatch.setattr(Device, "has_bf16", lambda self: False)
    level, text = ask("accelerator", precision="bf16")
    assert (level, "--precision fp32" in text) == ("warning", True)


# Does this torch fit this machine?


def test_a_gpu_and_a_torch_without_cuda(monkeypatch, unseen_gpu):
    "The most frequent fault on a rented machine; how bad it is depends on what was asked."
    monkeypatch.setattr(torch.version, "cuda", None)
    for device, level in (("auto", "warning"), ("cuda", "error"), ("cpu", "ok"), ("xla", "ok")):
        found, text = ask("build", device=device)
        assert found == level
        assert "this machine has Tesla T4 (driver 580.1), but torch" in text
        assert "is built without CUDA; install the build for CUDA" in text


@pytest.mark.parametrize("hidden", ["-1", "", None])
def test_a_gpu_that_torch_for_cuda_does_not_see(monkeypatch, unseen_gpu, hidden):
    "Hidden by a variable left over from another experiment, or for reasons nobody knows."
    said = "does not get it; restart the machine"
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        said = f"CUDA_VISIBLE_DEVICES={hidden!r}; remove that variable"
    level, text = ask("build", device="auto")
    assert (level, said in text) == ("warning", True)


def test_a_driver_too_old_for_torch(monkeypatch, unseen_gpu):
    "By torch's own question to the driver; within a generation of CUDA they agree."
    remedy = "(CUDA 12.4) is too old for torch for CUDA 13.0; update the driver"
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: 12040, raising=False)
    for device, level in (("auto", "warning"), ("cuda", "error"), ("cpu", "ok")):
        found, text = ask("build", device=device)
        assert (found, remedy in text) == (level, True)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert "does not get it" in ask("build", device="auto")[1]


def test_nvidia_smi_is_asked_and_may_be_silent(monkeypatch, nvidia_smi):
    "Two GPUs, one with a comma in its name; none; no answer; no such tool."
    nvidia_smi("echo 'Tesla T4, 535.104.05'; echo 'A, B, 535.104.05'")
    gpus = ["Tesla T4 (driver 535.104.05)", "A, B (driver 535.104.05)"]
    assert doctor._find_nvidia() == (gpus, "")
    nvidia_smi("echo 'No devices were found'; exit 6")
    assert doctor._find_nvidia() == ([], "")
    nvidia_smi("exec sleep 60")
    assert "timed out after 0.2 seconds" in doctor._find_nvidia(timeout=0.2)[1]
    monkeypatch.setenv("PATH", "")
    assert doctor._find_nvidia() == ([], "")


def test_a_driver_that_fails(monkeypatch, nvidia_smi):
    "After an update without a restart, for example; its own words and what to do."
    reason = "Failed to initialize NVML: Driver/library version mismatch"
    nvidia_smi(f"echo '{reason}'; echo 'NVML library version: 580'; exit 18")
    monkeypatch.setattr(doctor, "tpu_chips", list)
    for device, level in (("auto", "warning"), ("cuda", "error"), ("cpu", "ok")):
        found, text = ask("build", device=device)
        assert (found, f"{reason}; restart the machine" in text) == (level, True)


@pytest.mark.parametrize(
    ("capability", "builds", "remedy"),
    [
        ((6, 0), ["sm_75", "sm_80", "compute_120"], "install one for CUDA 12.6"),
        ((7, 0), ["sm_75", "sm_80", "sm_90"], "install one for CUDA 12.6"),
        ((12, 0), ["sm_75", "sm_80", "sm_90"], "install a newer one"),
        ((9, 0), ["sm_75", "sm_80"], "install a newer one"),
        ((7, 5), ["sm_75", "sm_80"], ""),
        ((8, 9), ["sm_80", "sm_90"], ""),
        ((12, 0), ["sm_90", "compute_90"], ""),
        ((9, 0), ["sm_90a"], ""),
        ((8, 0), ["sm_86"], "install a newer one"),
        ((10, 3), ["sm_100f"], ""),
    ],
)
def test_a_gpu_that_torch_holds_no_programs_for(monkeypatch, no_gpu, capability, builds, remedy):
    "torch finds it, and fails in the first step: an error wherever it would be taken."
    fake_gpu(monkeypatch, capability, builds)
    for device in ("auto", "cuda"):
        level, text = ask("accelerator", device=device)
        assert (level, remedy in text) == ("error" if remedy else "ok", True)
        name = f"NVIDIA X has compute capability {capability[0]}.{capability[1]}"
        assert (name in text) == bool(remedy)
    assert ask("accelerator")[0] == "ok"
    monkeypatch.setattr(torch.version, "cuda", None)  # torch for AMD: names such as gfx90a
    assert ask("accelerator", device="auto")[0] == "ok"


@pytest.mark.parametrize(("device", "level"), [("auto", "error"), ("xla", "error"), ("cpu", "ok")])
@pytest.mark.parametrize(
    ("chips", "version", "said"),
    [
        ([("v5e", 16)], None, "torch_xla is not installed"),
        ([("v5e", 16)], "1.0.0", "do not belong together"),
        ([], "1.0.0", "start a fresh one"),
        ([("v5e", 16)], torch.__version__, ""),
    ],
)
def test_a_tpu_and_its_package(monkeypatch, no_gpu, chips, version, said, device, level):
    "Missing, or for another torch, or right."
    checkup = doctor._Checkup(Config(device="cpu"))
    checkup.config = Config(device=device)
    monkeypatch.setattr(doctor, "tpu_chips", lambda: chips)
    monkeypatch.setattr(doctor, "installed", lambda name: version if "xla" in name else None)
    found, text = doctor._CHECKS["build"](checkup)
    assert (found, said in text) == (level if said else "ok", True)


def test_rosetta(monkeypatch, no_gpu):
    "A Python for Intel's processors on an Apple chip; on a real Intel Mac it is right."
    monkeypatch.setattr(doctor.platform, "machine", lambda: "x86_64")
    for kernel, level in (("RELEASE_ARM64_T8101", "warning"), ("RELEASE_X86_64", "ok")):
        monkeypatch.setattr(doctor.platform, "version", lambda kernel=kernel: f"Darwin {kernel}")
        found, text = ask("build", device="auto")
        assert (found, "install Python for arm64" in text) == (level, level != "ok")


def test_versions_that_do_not_belong_together(monkeypatch):
    "Something was installed over something else."
    for loaded, have, level, said in [
        ("2.13.0+cpu", {"torchvision": "0.28.0", "numpy": "2.4.6"}, "ok", ""),
        ("2.9.0", {"torchvision": "0.20.1+cu121"}, "warning", "install torchvision==0.24.*"),
        ("2.9.0+cu126", {"torch": "2.13.0"}, "error", "restart the kernel"),
        ("2.14.0a0+git1234", {"torch": "2.14.0a0+git1234"}, "ok", ""),
    ]:
        monkeypatch.setattr(torch, "__version__", loaded)
        monkeypatch.setattr(doctor, "installed", have.get)
        found, text = ask("versions")
        assert (found, said in text) == (level, True)


def test_optional_packages_are_listed_with_their_use(monkeypatch):
    "Their version, or how to install them; none is a fault. They are those of settings.ini."
    monkeypatch.setattr(doctor, "installed", {"av": "12.0", "onnx": "1.17"}.get)
    level, text = ask("optional")
    assert level == "ok" and "videos: av 12.0;" in text
    assert "ONNX files: onnx 1.17, not installed (pip install onnxruntime onnxscript);" in text
    parser = ConfigParser(interpolation=None)
    parser.read(TOP / "settings.ini")
    extras = ("notebook", "tensorboard", "export", "video")
    wanted = " ".join(parser["DEFAULT"][f"{name}_requirements"] for name in extras)
    listed = {name for names in doctor._OPTIONAL.values() for name in names}
    assert {re.split("[<>=]", word)[0] for word in wanted.split()} == listed


# Memory


def kept_bytes(images, precision):
    "What a forward pass keeps for the backward pass in torch's usual operations, at 64x64."
    model, sizes = plain.MSHNet(), {}
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def note(tensor):
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in weights:
            sizes[memory.data_ptr()] = memory.nbytes()
        return tensor

    image, mask = torch.rand(images, 3, 64, 64), torch.ones(images, 1, 64, 64)
    hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=precision != "fp32"):
        loss = mshnet_loss(*model(image.contiguous(memory_format=torch.channels_last)), mask)
    assert loss.isfinite().all()  # the graph is alive until here: no address is used twice
    return sum(sizes.values())


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_the_needed_memory_is_what_torch_keeps(precision):
    "The doctor must not wait for that, so it has the numbers; they must follow the network."
    one, two = (kept_bytes(images, precision) for images in (1, 2))
    fixed = 3 * 4 * 4_065_513 + 2 * one - two  # weights, gradients, Adagrad's sums
    assert doctor.needed(8, 64, precision) * GB == pytest.approx(fixed + 8 * (two - one), rel=0.15)
    assert (two - one) / 64**2 == pytest.approx(doctor._KEPT[precision], rel=0.05)


def test_a_batch_that_does_not_fit(monkeypatch):
    "What is free, what is needed, and a batch that fits."
    for free, level, said in [
        (8.0, "ok", "8.0 GB free; a batch of 16 takes 3.0 to 5.9 GB (estimated)"),
        (4.0, "warning", "write --batch-size 10 (or --micro-batch 10), or free some"),
        (2.0, "error", "write --batch-size 5 (or --micro-batch 5), or free some"),
        (0.1, "error", "use a smaller --base-size and --crop-size"),
        (float("inf"), "ok", "how much is free is not known"),
    ]:
        monkeypatch.setattr(Device, "free", lambda self, free=free: free * GB)
        found, text = ask("memory", batch_size=16, crop_size=256, precision="fp32")
        assert (found, said in text) == (level, True), text


def test_what_is_computed_at_once_counts(monkeypatch):
    "Several devices share a batch, if they can, and micro_batch computes it in parts."
    monkeypatch.setattr(Device, "free", lambda self: 3 * GB)
    for settings in ({"num_devices": 4}, {"micro_batch": 4}):
        level, text = ask("memory", batch_size=16, crop_size=256, precision="fp32", **settings)
        assert (level, "a batch of 4 takes" in text) == ("ok", True)
    level, text = ask("memory", batch_size=16, num_devices=3)
    assert (level, "write a multiple of 3" in text) == ("warning", True)


@pytest.mark.parametrize(
    "form", ["memory.max current", "memory/memory.limit_in_bytes usage_in_bytes"]
)
def test_a_containers_limit_counts(monkeypatch, tmp_path, form):
    "In both forms, but for file caches, which it gives up; a batch keeps to it."
    limit, used = form.split()
    (tmp_path / "memory").mkdir()
    (tmp_path / limit).write_text("536870912\n")
    (tmp_path / limit).with_name(f"memory.{used}").write_text("268435456\n")
    (tmp_path / limit).with_name("memory.stat").write_text("anon 5\ninactive_file 134217728\n")
    assert free_memory(tmp_path) == 0.375 * GB
    monkeypatch.setattr("mshnet.device.free_memory", lambda: free_memory(tmp_path))
    level, text = ask("memory", batch_size=64)
    assert (level, "0.4 GB free" in text) == ("error", True)


def test_a_gpus_own_memory_counts(monkeypatch):
    "Another program may hold most of it."
    fake_gpu(monkeypatch, (9, 0), ["sm_90"], free=1)
    level, text = ask("memory", device="cuda", batch_size=16, crop_size=256)
    assert (level, "1.0 GB free on each device" in text) == ("error", True)


# Disk, data and session


def test_room_on_the_disk(monkeypatch, tmp_path):
    "A run takes 70 MB."
    for gigabytes, level in ((50, "ok"), (0.5, "warning"), (0.1, "error")):
        usage = type("Usage", (), {"free": gigabytes * GB})
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _, usage=usage: usage)
        found, text = ask("disk", output_dir=str(tmp_path / "a" / "run"))
        assert (found, "--output-dir" in text) == (level, level != "ok")


def test_a_disk_that_cannot_be_written(monkeypatch, tmp_path):
    "Below a file, of somebody else, or mounted for reading: run and copies."
    (tmp_path / "file").touch()
    assert "(Not a directory)" in ask("disk", output_dir=str(tmp_path / "file" / "run"))[1]
    if os.name == "posix" and os.geteuid():  # root may write everywhere
        (tmp_path / "theirs").mkdir(mode=0o500)
        assert "Permission denied" in ask("disk", output_dir=str(tmp_path / "theirs/a"))[1]

    def refuse(**_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)
    folders = {"output_dir": str(tmp_path / "run"), "mirror_dir": str(tmp_path / "copies")}
    for subject, name in (("disk", "another --output-dir"), ("session", "write another")):
        level, text = ask(subject, **folders)
        assert (level, "(Read-only file system); " in text, name in text) == ("error", True, True)


def test_the_data(tmp_path):
    "What is there, what is missing, and what is spoilt."
    folder = make_dataset(tmp_path / "set")
    assert ask("data", dataset_dir=str(folder))[0] == "ok"
    assert ask("data", dataset_dir=str(tmp_path / "sets"))[0] == "error"
    (folder / "trainval.txt").write_text("ghost\n")
    level, text = ask("data", dataset_dir=str(folder))
    assert (level, "`mshnet data" in text) == ("error", True)


def test_where_a_run_is_copied_to(tmp_path):
    "Neither beside the run under the same name nor in it."
    run = tmp_path / "runs" / "mine"
    for name, level, said in [
        ("", "ok", "no copies"),
        (str(tmp_path / "copies"), "ok", "GB free"),
        ("drive", "warning", "mounted in Colab only"),
        (str(tmp_path / "runs"), "error", "the run itself is there"),
        (str(run / "copies"), "error", "the run itself is there"),
    ]:
        found, text = ask("session", mirror_dir=name, output_dir=str(run))
        assert (found, said in text) == (level, True), text


def test_in_colab_the_run_ends_with_the_session_unless_it_is_copied(monkeypatch, tmp_path):
    "Drive, however it is written, mounted or not, and the hours of a session."
    drive = tmp_path / "drive" / "MyDrive"
    place = Place("colab", tmp_path, tmp_path / "runs", "nothing is kept", drive=drive)
    monkeypatch.setattr(doctor, "where", lambda: place)
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release")
    monkeypatch.chdir(tmp_path)
    level, text = ask("session")
    assert (level, "--mirror-dir drive" in text) == ("warning", True)
    assert "stops by itself after 11.5 hours" in text
    assert "write --max-hours 11.5" in ask("session", max_hours=13)[1]
    for name in ("drive", "drive/MyDrive/copies", str(drive / "copies")):
        level, text = ask("session", mirror_dir=name)
        assert (level, "asks for your permission" in text) == ("ok", True)
    drive.mkdir(parents=True)
    assert "GB free" in ask("session", mirror_dir="drive")[1]
