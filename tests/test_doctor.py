"The doctor: each fault of a machine is one line with its remedy, and none stops the others."

import errno
import json
import os
import subprocess
import sys

import pytest
import torch
from conftest import make_dataset

from mshnet import doctor
from mshnet.bench import load_yardstick
from mshnet.cli import main
from mshnet.core import Config
from mshnet.device import Cuda
from mshnet.doctor import Nvidia, Patient
from mshnet.loss import mshnet_loss
from mshnet.places import Place

T4 = Nvidia(("Tesla T4",), "580.65.06")


def patient(**settings):
    "A machine on which a run on the CPU is to start."
    return Patient(Config(**{"device": "cpu", **settings}))


def tool(folder, name, script):
    "A program on the PATH, written for a test."
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def bin_dir(tmp_path, monkeypatch):
    "A folder that comes first on the PATH."
    if os.name != "posix":
        pytest.skip("the programs of these tests are shell scripts")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(doctor, "find_driver", lambda proc: Nvidia())
    return tmp_path / "bin"


def fake_gpu(monkeypatch, capability, builds, free=16):
    "A GPU that torch finds: its compute capability, what torch is built for, and free GB."
    facts = type("Facts", (), {"name": "NVIDIA X", "total_memory": 16 * 2**30})
    answers = {
        "is_available": True,
        "device_count": 1,
        "get_device_capability": capability,
        "get_arch_list": builds,
        "get_device_name": "NVIDIA X",
        "get_device_properties": facts,
        "mem_get_info": (free * 2**30, 16 * 2**30),
        "is_bf16_supported": True,
    }
    for name, value in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, _value=value, **__: _value)
    monkeypatch.setattr(Cuda, "has_bf16", lambda self: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(doctor, "find_nvidia", lambda: T4)


# The whole


def test_on_a_machine_where_nothing_is_wrong_every_line_is_ok(monkeypatch, tmp_path):
    "No question finds fault without a cause: what this machine may lack is given to it here."
    usage = type("Usage", (), {"free": 50 * 2**30})
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(doctor, "find_nvidia", Nvidia)
    monkeypatch.setattr(doctor, "tpu_chips", list)
    monkeypatch.setattr("mshnet.device.free_memory", lambda: 16 * 2**30)
    monkeypatch.setattr(doctor, "container_limit", lambda: 16 * 2**30)
    monkeypatch.setattr("mshnet.device.Cores.others", lambda self, least=0.0: 0.1)
    config = Config(
        device="cpu",
        precision="fp32",
        dataset_dir=str(make_dataset(tmp_path / "set")),
        output_dir=str(tmp_path / "run"),
        mirror_dir=str(tmp_path / "mirror"),
        max_hours=3,
    )
    found = doctor.doctor(config)
    assert [str(line) for line in found.lines if line.level != "ok"] == []
    assert (found.worst, found.status) == ("ok", 0)
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "mirror").exists()


def test_busy_neighbours_are_a_warning(monkeypatch):
    "For a CPU, where they slow a training down; a GPU does not care."
    monkeypatch.setattr("mshnet.device.Cores.others", lambda self, least=0.0: 0.9)
    patient = doctor.Patient(Config(device="cpu"))
    line = doctor.neighbours(patient)
    assert line.level == "warning" and "other programs keep 0.9 of" in line.text
    monkeypatch.setattr(type(patient.device), "kind", "cuda")
    assert doctor.neighbours(patient).level == "ok"


def test_every_question_is_one_line_on_this_machine():
    "Whatever this machine is, all are answered, in the order of the questions."
    found = doctor.doctor(Config(device="cpu"))
    names = [question.__name__ for question in doctor.QUESTIONS]
    assert [line.subject for line in found.lines] == names
    assert not [line for line in found.lines if "\n" in str(line) or "not be answered" in line.text]


def test_the_device_is_opened_once(monkeypatch):
    "A TPU or a sick GPU takes long to answer."
    calls = []
    real = doctor.open_device
    monkeypatch.setattr(doctor, "open_device", lambda *a: calls.append(a) or real(*a))
    doctor.doctor(Config(device="cpu"))
    assert len(calls) == 1


def test_a_question_that_fails_leaves_the_others(monkeypatch):
    "An unforeseen machine: its reason is told, on one line."
    wrong = lambda: 1 / 0  # noqa: E731
    monkeypatch.setattr(doctor.platform, "system", wrong)
    monkeypatch.setattr(doctor.platform, "machine", wrong)
    lines = {line.subject: line for line in doctor.doctor(Config(device="cpu")).lines}
    assert lines["machine"].level == "warning"
    assert "ZeroDivisionError: division by zero" in lines["machine"].text
    assert lines["place"].level == "ok"


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


@pytest.mark.parametrize(("level", "status"), [("ok", 0), ("warning", 1), ("error", 2)])
def test_the_status_is_that_of_the_worst_line(capsys, monkeypatch, level, status):
    "With and without --json."
    line = doctor.Line(level, "it", "a finding")
    questions = (doctor.place, lambda patient: line)
    monkeypatch.setattr(doctor, "QUESTIONS", questions)
    for words in (["doctor", "--device", "cpu"], ["doctor", "--device", "cpu", "--json"]):
        assert main(words) == status
    assert json.loads(capsys.readouterr().out.split("finding\n")[1])["worst"] == level


def test_help_tells_the_status(capsys):
    "A script's author looks there."
    with pytest.raises(SystemExit):
        main(["doctor", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "0 all is well; 1 there is a warning; 2 there is an error" in text


# The accelerator, and what torch was built for


def test_a_device_that_does_not_start_is_an_error_with_its_reason(monkeypatch):
    "A run would meet the same; the other questions are answered all the same."

    def fall(*_):
        raise RuntimeError("CUDA error: unknown error\nCompile with TORCH_USE_CUDA_DSA")

    monkeypatch.setattr(doctor, "open_device", fall)
    found = {line.subject: line for line in doctor.doctor(Config(device="cpu")).lines}
    assert found["accelerator"].level == "error"
    assert "CUDA error: unknown error); restart the kernel" in found["accelerator"].text
    assert {found[name].level for name in ("batch", "memory")} == {"ok"}


def test_what_torch_warns_of_is_part_of_the_line(monkeypatch, recwarn):
    "And does not appear between the lines."
    real = doctor.open_device

    def warn(*words):
        doctor.warnings.warn("CUDA initialization: a long story\nwith a second line", stacklevel=2)
        return real(*words)

    monkeypatch.setattr(doctor, "open_device", warn)
    line = doctor.accelerator(patient())
    assert line.level == "warning"
    assert "it warns: CUDA initialization: a long story (see" in line.text
    assert not recwarn.list


def test_bf16_that_is_emulated_is_a_warning(monkeypatch):
    "Asked for by hand on a chip that has none."
    sick = patient(precision="bf16")
    monkeypatch.setattr(sick.device, "has_bf16", lambda: False)
    assert (
        doctor.accelerator(sick).level,
        "--precision fp32" in doctor.accelerator(sick).text,
    ) == (
        "warning",
        True,
    )


@pytest.mark.parametrize(
    ("device", "level"), [("auto", "warning"), ("cuda", "error"), ("cpu", "ok"), ("xla", "ok")]
)
def test_a_gpu_and_a_torch_without_cuda(monkeypatch, device, level):
    "The most frequent fault on a rented machine; how bad it is depends on what was asked."
    monkeypatch.setattr(doctor, "find_nvidia", lambda: T4)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor, "tpu_chips", list)
    line = doctor.build(Patient(Config(device=device)))
    assert line.level == level
    assert "this machine has Tesla T4, but torch" in line.text
    assert "is built without CUDA; install the build for CUDA" in line.text


@pytest.mark.parametrize(
    ("visible", "said"),
    [
        ("-1", "CUDA_VISIBLE_DEVICES='-1'; remove that variable"),
        ("", "CUDA_VISIBLE_DEVICES=''; remove that variable"),
        ("3,0", "CUDA_VISIBLE_DEVICES='3,0'; remove that variable"),
        ("0", "does not get it; restart the machine"),
        ("GPU-8932f937", "does not get it; restart the machine"),
        (None, "does not get it; restart the machine"),
    ],
)
def test_a_gpu_that_torch_for_cuda_does_not_see(monkeypatch, visible, said):
    "Hidden by a variable left over from another experiment, or for reasons nobody knows."
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: 13000, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor, "find_nvidia", lambda: T4)
    monkeypatch.setattr(doctor, "tpu_chips", list)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    line = doctor.build(patient(device="auto"))
    assert (line.level, said in line.text) == ("warning", True)


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
def test_a_gpu_that_torch_holds_no_programs_for(monkeypatch, capability, builds, remedy):
    "torch finds it, and fails in the first step: an error wherever it would be taken."
    fake_gpu(monkeypatch, capability, builds)
    for device in ("auto", "cuda"):
        line = doctor.build(Patient(Config(device=device)))
        assert (line.level, remedy in line.text) == ("error" if remedy else "ok", True)
        name = f"NVIDIA X has compute capability {capability[0]}.{capability[1]}"
        assert (name in line.text) == bool(remedy)
    assert doctor.build(patient()).level == "ok"


def test_torch_for_amd_is_not_measured_by_nvidias_numbers(monkeypatch):
    "Its list holds names such as gfx90a, and its devices are called cuda too."
    fake_gpu(monkeypatch, (9, 0), ["gfx90a"])
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(doctor, "find_nvidia", Nvidia)
    line = doctor.build(Patient(Config(device="auto")))
    assert (line.level, line.text.split(", for ")[1]) == ("ok", "ROCm 6.4")


@pytest.mark.parametrize(("device", "level"), [("auto", "error"), ("xla", "error"), ("cpu", "ok")])
@pytest.mark.parametrize(
    ("chips", "version", "said"),
    [
        ([("v5e", 16)], None, "torch_xla is not installed"),
        ([("v5e", 16)], "1.0.0", "do not belong together"),
        ([], "1.0.0", "start a fresh one"),
    ],
)
def test_a_tpu_without_its_package(monkeypatch, chips, version, said, device, level):
    "Or with one for another torch."
    monkeypatch.setattr(doctor, "find_nvidia", Nvidia)
    monkeypatch.setattr(doctor, "tpu_chips", lambda: chips)
    monkeypatch.setattr(doctor, "installed", lambda name: version if "xla" in name else None)
    sick = patient()
    sick.config = Config(device=device)
    line = doctor.build(sick)
    assert (line.level, said in line.text) == (level, True)


def test_a_tpu_with_its_package_is_fine(monkeypatch):
    "The same minor version, whatever the rest."
    same = ".".join(torch.__version__.split("+")[0].split(".")[:2]) + ".9"
    monkeypatch.setattr(doctor, "find_nvidia", Nvidia)
    monkeypatch.setattr(doctor, "tpu_chips", lambda: [("v5e", 16)] * 8)
    monkeypatch.setattr(doctor, "installed", lambda name: same)
    assert doctor.unfit_xla() == ""


@pytest.mark.parametrize(("answer", "found"), [("1", True), ("0", False), ("", False)])
def test_rosetta(monkeypatch, bin_dir, answer, found):
    "A Python for Intel's processors on an Apple chip; on a real Intel Mac it is right."
    tool(bin_dir, "sysctl", f"echo {answer}")
    monkeypatch.setattr(doctor.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(doctor.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(doctor, "find_nvidia", Nvidia)
    monkeypatch.setattr(doctor, "tpu_chips", list)
    line = doctor.build(patient(device="auto"))
    assert (line.level == "warning", "install Python for arm64" in line.text) == (found, found)


# The driver


def test_nvidia_smi_names_gpus_and_driver(bin_dir):
    "Two GPUs, one of them with a comma in its name."
    tool(bin_dir, "nvidia-smi", "echo 'Tesla T4, 535.104.05'; echo 'A, B, 535.104.05'")
    assert doctor.find_nvidia() == Nvidia(("Tesla T4", "A, B"), "535.104.05")
    line = doctor.driver(patient())
    assert str(line) == "ok      driver      NVIDIA 535.104.05: Tesla T4, A, B"


@pytest.mark.parametrize(
    ("device", "level"), [("auto", "warning"), ("cuda", "error"), ("cpu", "ok")]
)
def test_a_driver_that_fails(bin_dir, device, level):
    "After an update without a restart, for example; its own words and what to do."
    reason = "Failed to initialize NVML: Driver/library version mismatch"
    tool(bin_dir, "nvidia-smi", f"echo '{reason}'; echo 'NVML library version: 580'; exit 18")
    line = doctor.driver(Patient(Config(device=device)))
    assert line.level == level
    assert f"{reason}; restart the machine" in line.text


def test_a_driver_that_does_not_answer(bin_dir):
    "The doctor does not wait for it for ever."
    tool(bin_dir, "nvidia-smi", "exec sleep 60")
    found = doctor.find_nvidia(patience=0.2)
    assert found.trouble == "no answer within 0.2 seconds"


def test_a_machine_with_the_tool_and_without_a_gpu(bin_dir):
    "Images bring nvidia-smi along; its finding nothing is no fault."
    tool(bin_dir, "nvidia-smi", "echo 'No devices were found'; exit 6")
    assert doctor.find_nvidia() == Nvidia()
    assert doctor.driver(patient(device="auto")).level == "ok"


def test_without_the_tool_the_drivers_folder_is_read(monkeypatch, tmp_path):
    "As in a container with a GPU."
    monkeypatch.setenv("PATH", str(tmp_path))
    for i in range(2):
        card = tmp_path / "gpus" / f"0000:0{i}:00.0"
        card.mkdir(parents=True)
        (card / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   22\n")
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release Build\n"
    (tmp_path / "version").write_text(text + "GCC version:  gcc version 12.3.0\n")
    assert doctor.find_nvidia(tmp_path) == Nvidia(("NVIDIA H200",) * 2, "570.133.20")


def test_last_of_all_the_library_counts(monkeypatch, tmp_path):
    "No tool and no folder, as in some containers."
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "_raw_device_count_nvml", lambda: 2)
    assert doctor.find_nvidia(tmp_path) == Nvidia(("an NVIDIA GPU",) * 2)
    monkeypatch.setattr(torch.cuda, "_raw_device_count_nvml", lambda: -1)
    assert doctor.find_nvidia(tmp_path) == Nvidia()


@pytest.mark.parametrize(
    ("known", "version", "cuda", "remedy"),
    [
        (12040, "550.54", "13.0", "update the driver to 580 or newer, or install torch for an"),
        (0, "470.82", "12.6", "update the driver to 525 or newer"),
        (11040, "", "99.0", "update the driver to the newest"),
        (12040, "550.54", "12.8", ""),  # within a generation they get along
        (13020, "590.1", "12.8", ""),
        (0, "", "12.8", ""),
    ],
)
def test_a_driver_too_old_for_torch(monkeypatch, known, version, cuda, remedy):
    "By torch's own question to the driver, else by the number of the driver."
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: known, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor, "find_nvidia", lambda: Nvidia(("Tesla T4",), version))
    for device, level in (("auto", "warning"), ("cuda", "error"), ("cpu", "ok")):
        line = doctor.driver(Patient(Config(device=device)))
        assert (line.level, remedy in line.text) == (level if remedy else "ok", True)
    if remedy:  # said once
        assert doctor.build(patient(device="auto")).level == "ok"


# Versions


@pytest.mark.parametrize(
    ("loaded", "have", "level", "said"),
    [
        ("2.13.0+cpu", {"torchvision": "0.28.0", "numpy": "2.4.6"}, "ok", ""),
        ("2.8.0", {}, "ok", ""),
        ("2.7.1", {}, "warning", "install a newer torch"),
        ("2.9.0", {"torchvision": "0.20.1+cu121"}, "warning", "install torchvision==0.24.*"),
        ("2.2.0", {"numpy": "2.1.0"}, "error", "pip install 'numpy<2'"),
        ("2.9.0+cu126", {"torch": "2.13.0"}, "error", "restart the kernel"),
        ("2.14.0a0+git1234", {"torch": "2.14.0a0+git1234"}, "ok", ""),
    ],
)
def test_versions_that_do_not_belong_together(monkeypatch, loaded, have, level, said):
    "Something was installed over something else."
    monkeypatch.setattr(torch, "__version__", loaded)
    monkeypatch.setattr(doctor, "installed", have.get)
    line = doctor.versions(patient())
    assert (line.level, said in line.text) == (level, True)


# Memory


def kept_bytes(images, precision):
    "What a forward pass keeps for the backward pass in torch's usual operations, at 64x64."
    model, sizes = load_yardstick().MSHNet(), {}
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
    assert doctor.needed(8, 64, precision)[0] == pytest.approx(fixed + 8 * (two - one), rel=0.15)
    assert (two - one) / 64**2 == pytest.approx(doctor.KEPT[precision], rel=0.05)


@pytest.mark.parametrize(
    ("free", "level", "said"),
    [
        (8.0, "ok", "8.0 GB free; a batch of 16 takes 3.0 to 5.9 GB (estimated)"),
        (4.0, "warning", "write --batch-size 10, or free some"),
        (2.0, "error", "write --batch-size 5, or free some"),
        (0.1, "error", "use a smaller --crop-size"),
        (float("inf"), "ok", "how much is free is not known"),
    ],
)
def test_a_batch_that_does_not_fit(monkeypatch, free, level, said):
    "What is free, what is needed, and a batch that fits."
    tight = patient(batch_size=16, crop_size=256, precision="fp32")
    monkeypatch.setattr(tight.device, "free", lambda: free * 2**30)
    monkeypatch.setattr(doctor, "container_limit", lambda: float("inf"))
    line = doctor.memory(tight)
    assert (line.level, said in line.text) == (level, True), line


def test_what_is_computed_at_once_counts(monkeypatch):
    "Several devices share a batch, and micro_batch computes it in parts."
    for settings in ({"num_devices": 4}, {"micro_batch": 4}):
        roomy = patient(batch_size=16, crop_size=256, precision="fp32", **settings)
        monkeypatch.setattr(roomy.device, "free", lambda: 3 * 2**30)
        assert doctor.memory(roomy).text.count("a batch of 4 takes") == 1
        assert doctor.memory(roomy).level == "ok"


def test_a_containers_limit_counts(monkeypatch, tmp_path):
    "Both forms of the limit; the machine's line names it, the memory's line keeps to it."
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("536870912\n")
    assert doctor.container_limit(tmp_path) == 2**29
    monkeypatch.setattr(doctor, "container_limit", lambda: 2**29)
    assert "(this container may take 0.5 GB)" in doctor.machine(patient()).text
    assert doctor.memory(patient(batch_size=64)).level == "error"


def test_a_gpus_own_memory_counts(monkeypatch):
    "Another program may hold most of it."
    fake_gpu(monkeypatch, (9, 0), ["sm_90"], free=1)
    line = doctor.memory(Patient(Config(device="cuda", batch_size=16, crop_size=256)))
    assert (line.level, "1.0 GB free on the device" in line.text) == ("error", True)


# Disk, Drive and mirror


@pytest.mark.parametrize(("gigabytes", "level"), [(50, "ok"), (0.5, "warning"), (0.1, "error")])
def test_room_on_the_disk(monkeypatch, tmp_path, gigabytes, level):
    "A run takes 70 MB."
    usage = type("Usage", (), {"free": gigabytes * 2**30})
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage)
    line = doctor.disk(patient(output_dir=str(tmp_path / "a" / "run")))
    assert (line.level, "--output-dir" in line.text) == (level, level != "ok")


def read_only(monkeypatch):
    "A disk that was mounted for reading."

    def refuse(**_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)


def test_a_disk_that_cannot_be_written(monkeypatch, tmp_path):
    "Below a file, or mounted for reading."
    (tmp_path / "file").touch()
    line = doctor.disk(patient(output_dir=str(tmp_path / "file" / "run")))
    assert (line.level, "cannot be written (Not a directory)" in line.text) == ("error", True)
    read_only(monkeypatch)
    line = doctor.disk(patient(output_dir=str(tmp_path / "run")))
    assert (line.level, "(Read-only file system); write --output-dir" in line.text) == (
        "error",
        True,
    )


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_somebody_else(tmp_path):
    "Rights are tried, not asked for."
    (tmp_path / "theirs").mkdir(mode=0o500)
    assert "Permission denied" in doctor.disk(patient(output_dir=str(tmp_path / "theirs/a"))).text


def in_colab(monkeypatch, folder):
    "A machine of Colab whose data folder is given."
    drive = folder / "drive" / "MyDrive"
    place = Place("colab", folder, folder / "runs", "Colab: nothing is kept", drive=drive)
    monkeypatch.setattr(doctor, "where", lambda: place)
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release")


def test_drive_matters_in_colab_only(monkeypatch, tmp_path):
    "Not mounted, what that means is said; mounted, how to keep the run there."
    assert str(doctor.drive(patient())) == "ok      drive       only in Colab"
    in_colab(monkeypatch, tmp_path)
    line = doctor.drive(patient())
    assert line.level == "warning"
    assert "mirror_dir = drive keeps it there" in line.text
    assert "asks for your permission" in doctor.drive(patient(mirror_dir="drive")).text
    assert "when it is mounted" in doctor.mirror(patient(mirror_dir="drive")).text
    (tmp_path / "drive" / "MyDrive").mkdir(parents=True)
    assert (doctor.drive(patient()).level, doctor.mirror(patient(mirror_dir="drive")).level) == (
        "ok",
        "ok",
    )


def test_a_mirror_on_drive_is_one_however_it_is_written(monkeypatch, tmp_path):
    "A folder of a Drive that is not mounted is not the folder of the local disk in its place."
    in_colab(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ("drive", "drive/MyDrive/copies", str(tmp_path / "drive/MyDrive/copies")):
        asked = patient(mirror_dir=name)
        assert "training asks for your permission" in doctor.drive(asked).text
        assert "when it is mounted" in doctor.mirror(asked).text
    (tmp_path / "drive" / "MyDrive").mkdir(parents=True)
    assert "GB free" in doctor.mirror(asked).text


def test_the_mirror_is_reached_and_written(monkeypatch, tmp_path):
    "And is not the run itself, neither beside it under the same name nor in it."
    run = tmp_path / "runs" / "mine"
    for name, level, said in [
        ("", "ok", "none"),
        (str(tmp_path / "copies"), "ok", "GB free; the run's own disk"),
        ("drive", "warning", "is for Colab, so there will be none; write a folder"),
        (str(tmp_path / "runs"), "error", "is where the run itself is; write another folder"),
        (str(run / "copies"), "error", "is where the run itself is; write another folder"),
    ]:
        line = doctor.mirror(patient(mirror_dir=name, output_dir=str(run)))
        assert (line.level, said in line.text) == (level, True), line
    read_only(monkeypatch)
    line = doctor.mirror(patient(mirror_dir=str(tmp_path / "copies"), output_dir=str(run)))
    assert (line.level, "cannot be written (Read-only file system)" in line.text) == ("error", True)


# Time and data


def test_the_time_budget(monkeypatch, tmp_path):
    "None here, the place's own in Colab, and one that is too short to do anything in."
    assert doctor.time(patient()).text == "no limit (max_hours=0)"
    assert doctor.time(patient(max_hours=3.5)).text.startswith("stops by itself 3.5 hours after")
    assert doctor.time(patient(max_hours=0.01)).level == "warning"
    in_colab(monkeypatch, tmp_path)
    assert "stops by itself 11.5 hours" in doctor.time(patient()).text
    assert "write 11.5" in doctor.time(patient(max_hours=13)).text


def test_the_data(tmp_path):
    "What is there, what is missing, and what is spoilt."
    folder = make_dataset(tmp_path / "set")
    assert doctor.data(patient(dataset_dir=str(folder))).level == "ok"
    assert doctor.data(patient(dataset_dir=str(tmp_path / "sets"))).level == "error"
    (folder / "trainval.txt").write_text("ghost\n")
    line = doctor.data(patient(dataset_dir=str(folder)))
    assert (line.level, "`mshnet data" in line.text) == ("error", True)


def test_nothing_is_left_behind(monkeypatch, tmp_path):
    "Neither in the run's folder nor where the doctor was asked."
    monkeypatch.chdir(tmp_path)
    doctor.doctor(Config(device="cpu", mirror_dir="copies"))
    assert list(tmp_path.iterdir()) == []
