"""XLA without a TPU: PJRT on the CPU, with 1 and with 8 virtual devices. `make test-xla`.

What cannot be seen here: a TPU's speed, memory and rounding, its persistent cache, several hosts.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mshnet.cli import main
from mshnet.places import installed

if installed("torch_xla") is None:
    pytest.skip("needs torch_xla: make test-xla", allow_module_level=True)

HERE = Path(__file__).parent
RUNNERS = HERE.parents[1] / "nbs" / "run"
QUIET = {"OMP_WAIT_POLICY": "PASSIVE", "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "1"}


def python(*words, **environ):
    "Run Python where XLA has one virtual device, or what the environment says."
    env = {**os.environ, **QUIET, **environ}
    words = [sys.executable, *map(str, words)]
    return subprocess.run(words, env=env, capture_output=True, text=True)


def observe(tmp_path_factory, devices):
    "What observe.py sees on so many devices."
    out = tmp_path_factory.mktemp("seen") / "seen.json"
    done = python(HERE / "observe.py", out, CPU_NUM_DEVICES=str(devices))
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(out.read_text()) | {"said": done.stdout}


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    "What was seen on 8 devices."
    return observe(tmp_path_factory, 8)


@pytest.fixture(scope="module")
def travelled(tmp_path_factory):
    "What was seen of a run that travels, on one device."
    return observe(tmp_path_factory, 1)


def losses(run):
    "Those of the ten steps."
    return [row["loss"] for row in run["rows"] if "loss" in row]


def test_a_phase_is_one_program(seen):
    "Compiled in its first step, whatever the learning rate; a scoring is another one."
    began, first, *later, scored = (row["programs"] for row in seen["xla"]["rows"])
    assert first == began + 1
    assert later == [first] * 9
    assert scored == first + 1  # three batches, the last one half filled


def test_native_scoring_has_one_program_for_each_padded_size(seen):
    "Images of one padded size share it, in later scorings too, and the scores are the CPU's."
    assert seen["native"]["programs"] == [2, 0]
    assert seen["native"]["scores"] == seen["native"]["on the CPU"]


def test_no_operation_leaves_the_device(seen):
    "Over full training steps and a full scoring, reads included."
    assert [row["host"] for row in seen["xla"]["rows"]] == [[]] * 12


def test_scoring_reads_once_a_batch(seen):
    "The logits, and nothing else."
    assert seen["xla"]["rows"][-1]["reads"] == 3


def test_ten_steps_have_the_losses_of_plain_pytorch(seen):
    """The losses on 8 devices are those of the CPU as nearly as float32 defines them.
    Ten steps of this network multiply a rounding error by some thousand (batch norm over few
    pixels), so no fixed number of digits is right. The same steps in plain PyTorch from weights
    shaken in their seventh digit measure it: XLA may differ ten times as much, and never by 0.005
    (on a CPU without AVX-512 the shaking alone moves the ninth loss by 0.0017).
    Adagrad's sums begin at 0.1 here: from zero its first step is the gradient's sign, which for
    gradients that are zero but for rounding is a coin, and ten steps later the second digit is one
    too. The first loss, before any update, must agree to one part in a million."""
    want, have = losses(seen["cpu"]), losses(seen["xla"])
    shaken = [losses(run) for run in seen["shaken"]]
    assert len(want) == 10
    assert have[0] == pytest.approx(want[0], rel=1e-6)
    spread = 1e-6
    for step, value in enumerate(want):
        spread = max(spread, *(abs(run[step] - value) for run in shaken))
        assert abs(have[step] - value) <= min(10 * spread, 0.005), step


def test_averaged_weights_have_the_loss_of_plain_pytorch(seen):
    "After the ten steps, by the same measure."
    want = seen["cpu"]["averaged"]
    spread = max(1e-6, *(abs(run["averaged"] - want) for run in seen["shaken"]))
    assert abs(seen["xla"]["averaged"] - want) <= min(10 * spread, 0.002)


def test_the_same_weights_score_the_same(seen):
    "Counts of objects exactly; overlap but for pixels whose logit is zero to rounding."
    have, want = seen["xla"]["scores"], seen["xla"]["same weights"]
    assert (have["images"], have["targets"]) == (want["images"], want["targets"]) == (20, 36)
    assert have["iou"] == pytest.approx(want["iou"], rel=1e-3)
    assert have["pd"] == pytest.approx(want["pd"], abs=1 / 36)
    assert have["fa"] == pytest.approx(want["fa"], rel=1e-2)


def test_a_batch_is_cut_and_a_weight_is_copied(seen):
    "Each device holds its rows and no others; together they are the batch."
    found = seen["shards"]
    assert found["rows"] == [[2.0 * i, 2.0 * i + 1] for i in range(8)]
    assert found["weight"] == "{replicated}"
    assert found["batch"].startswith("{devices=[8,1,1,1]")


def test_another_program_later_is_warned_of_with_its_reason(seen):
    "Once each; a number read in the middle of a step shows in the counters by one name."
    odd, read = seen["detector"]["odd"], seen["detector"]["read"]
    batches = "torch.float32 (8, 1, 4, 4) and is torch.float32 (16, 1, 4, 4)"
    assert odd == [f"XLA compiled the odd step again: the batch was {batches}"]
    assert read == ["XLA compiled the read step again: aten::_local_scalar_dense ran on the host"]
    assert "the step recorded other operations" in seen["detector"]["other"][0]  # not that one
    assert seen["detector"]["host"] == ["aten::_local_scalar_dense"]


def test_training_compiles_once_per_phase(travelled):
    "In `train` itself, with a read of the loss after every step: two epochs of each phase."
    found = travelled["travel"]
    programs = [entry["xla"]["programs"] for entry in found["history"][:4]]
    assert programs[1] == programs[0]
    assert programs[2] == programs[1] + 2  # the step and the scoring of another head
    assert programs[3] == programs[2]
    again = [line for line in found["warnings"] if "compiled" in line]
    assert ["the scoring step again" in line for line in again] == [True]  # MSHNet's is one


def test_a_checkpoint_travels(travelled):
    "xla, cpu, xla: weights and optimizer arrive to the last bit, and the run keeps its bfloat16."
    found = travelled["travel"]
    assert (found["cpu"], found["xla"]) == (True, True)
    devices = [entry["device"] for entry in found["history"]]
    assert [line.split(",")[0] for line in devices] == ["xla"] * 4 + ["cpu", "xla"]
    assert all(", bf16" in line for line in devices)


def test_the_user_is_told_of_compiling(seen):
    "What is compiled, how long it took, and how often in the run."
    assert "compiled the full step in" in seen["said"]
    assert seen["facts"]["compile_seconds"] > 1
    assert "8 virtual device" in seen["why"]


STALE = {"TPU_PROCESS_ADDRESSES": "local", "CLOUD_TPU_TASK_ID": "0"}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    "What small.py printed on Kaggle, with a cache; and its folder."
    folder = tmp_path_factory.mktemp("small")
    done = python(HERE / "small.py", folder / "cache", KAGGLE_KERNEL_RUN_TYPE="Batch", **STALE)
    assert done.returncode == 0, done.stderr
    return done.stdout, folder


def test_the_cache_is_written_and_one_that_cannot_be_read_is_no_matter(small):
    "PJRT on the CPU writes entries that another process cannot read; on a TPU it should gain time."
    said, folder = small
    assert list((folder / "cache").iterdir())
    assert "'cache_hits': 0" in said
    second = python(HERE / "small.py", folder / "cache")
    assert (second.returncode, second.stderr.strip()) == (0, "")


def test_random_numbers_on_the_chips_follow_the_seed(small):
    "For tasks with dropout."
    assert "\nseeded" in small[0]


def test_kaggles_stale_variables_are_gone_before_the_runtime_starts(small, tmp_path):
    """With them it would wait for workers that do not exist. On a pod they are right and stay.

    There the cache cannot be written: a file is there.
    """
    assert small[0].splitlines()[-1] == "[]"
    (tmp_path / "cache").write_text("")
    pod = STALE | {"TPU_PROCESS_ADDRESSES": "10.0.0.1:8476", "CPU_NUM_DEVICES": "8"}
    done = python(HERE / "small.py", tmp_path / "cache", **pod)
    assert done.stdout.splitlines()[-1] == str(list(STALE))
    assert "xla, fp32: 8 virtual devices" in done.stdout
    assert done.returncode == 0, done.stderr


def test_torchrun_is_refused(tmp_path, monkeypatch, capsys):
    "Two processes would write one folder; one process drives all chips."
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert main(["train", "--device", "xla", "--output-dir", str(tmp_path / "run")]) == 2
    assert "start it without torchrun" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


MISTAKES = {
    "--batch-size 12": "batch_size=12 cannot be shared by 8 devices: use 8 or 16",
    "--num-cores 3": "num_devices=3: this runtime has 8 devices; use 8",
}
EACH = "import sys; from mshnet.cli import main; print([main(w.split()) for w in sys.argv[1:]])"


def test_mistakes_are_one_line(tmp_path):
    "Status 2, and no run begun. The number of cores is as in older guides."
    out = f"--output-dir {tmp_path / 'run'}"
    lines = [f"train --device xla {words} {out}" for words in MISTAKES]
    done = python("-c", EACH, *lines, CPU_NUM_DEVICES="8")
    assert done.stdout.splitlines()[-1] == "[2, 2]", done.stderr
    said = done.stderr.strip().splitlines()
    for have, want in zip(said[-len(MISTAKES) :], MISTAKES.values(), strict=True):
        assert want in have
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        ({"PJRT_DEVICE": "TPU"}, "this machine has no TPU; "),
        ({"PJRT_DEVICE": "CUDA"}, "another kind of runtime"),
        ({"PJRT_DEVICE": "", "COLAB_RELEASE_TAG": "x"}, "v5e-1 TPU"),
    ],
)
def test_without_a_tpu_the_remedy_is_said(environ, line, monkeypatch, capsys):
    "By the doctor too, whose status says that something is wrong."
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert main(["doctor", "--device", "xla"]) == 2
    found = [x for x in capsys.readouterr().out.splitlines() if x.startswith("error")]
    assert line in found[0]


def test_the_doctor_knows_the_device():
    "Its kind, number and precision, and the version of torch_xla."
    done = python("-m", "mshnet", "doctor", "--device", "xla", CPU_NUM_DEVICES="8")
    assert done.returncode in (0, 1), done.stdout  # 1: such as little room on the disk
    assert "error" not in done.stdout
    assert "xla, bf16: 8 virtual devices" in done.stdout and "torch_xla 2.9" in done.stdout


def test_a_tpu_runner_runs_headless(tmp_path):
    "From top to bottom, with its own defaults but for the sizes."
    small = {"epochs": 1, "warm_epoch": -1, "scenes": 32, "base_size": 64, "crop_size": 64}
    small |= {"output_dir": tmp_path / "run", "choose": "last"}
    words = [w for k, v in small.items() for w in ("-p", k, v)]
    out = tmp_path / "out.ipynb"
    runner = ["-m", "papermill", RUNNERS / "kaggle_tpu.ipynb", out, "--cwd", tmp_path]
    done = python(*runner, *words, CPU_NUM_DEVICES="8")
    assert done.returncode == 0, done.stderr[-3000:]
    text = out.read_text()
    assert "compiled the full step in" in text and "Traceback" not in text
    assert not re.search(r"XLA compiled the .* again", text)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["epochs_done"]) == ("finished", 1)
    assert list((tmp_path / "xla_cache").iterdir())
