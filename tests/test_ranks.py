"Several processes under torchrun, on the CPU with gloo."

import json
import os
import re
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import refused, same, until_it_trains
from test_predict import mixed, results
from warm import Python, in_two_processes, run

from mshnet.cli import main
from mshnet.core import STOPPED, UserError
from mshnet.evaluate import Detector
from mshnet.ranks import Ranks
from mshnet.recipe import Config
from mshnet.run import Folder, Interrupted, read_checkpoint
from mshnet.session import alone
from mshnet.show import gallery
from mshnet.train import _Processes, train

HERE = Path(__file__).parent
SMALL = "--scenes 16 --base-size 32 --crop-size 32 --batch-size 4 --choose last --device cpu"


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    "What each process saw, its output, and the folder."
    out = tmp_path_factory.mktemp("ranks")
    done = in_two_processes(HERE / "ranks_worker.py", out)
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((out / f"{rank}.json").read_text()) for rank in (0, 1)]
    return {"ranks": ranks, "said": done.stdout, "out": out}


def test_gradients_are_those_of_the_whole_batch(seen):
    "In both phases, to rounding, as are batch norm's statistics; heads not in use have none."
    for rank in seen["ranks"]:
        assert rank["gradients"]["warm-up"] < 5e-3  # of each weight; one process's rows: 0.5
        assert rank["gradients"]["full"] < 5e-3
        assert rank["gradients"]["warm-up statistics"] < 1e-5
        assert rank["gradients"]["full statistics"] < 1e-5
        assert (rank["gradients"]["warm-up unused"], rank["gradients"]["full unused"]) == (8, 0)


def test_a_batch_in_parts_has_the_step_of_the_whole_batch(seen):
    "What the processes have averaged already stays as it is in the next part."
    for rank in seen["ranks"]:
        assert rank["parts"] < 1e-5


def test_scores_are_those_of_one_process(seen):
    "Scores, every image's counts and the curves, whatever the remainder."
    assert [rank["scores"] for rank in seen["ranks"]] == [[True] * 4] * 2


def test_rows_are_disjoint_and_complete(seen):
    "Each process has its part of each batch."
    first, second = (rank["rows"] for rank in seen["ranks"])
    assert (first, second) == ([[4, 9], [1, 0]], [[2, 7], [8, -1]])


def test_a_batch_that_cannot_be_shared_is_an_error():
    "Of a plan of one's own; a row that is left out would be a wrong score without a word."
    two = SimpleNamespace(count=2, rank=0)
    assert Ranks.shard(two, [[1, 2], [3, -1]]) == [[1], [3]]
    with pytest.raises(UserError, match="batches of a multiple of 2"):
        Ranks.shard(two, [[1, 2, 3]])


def test_random_numbers_differ_by_process_and_follow_the_seed(seen):
    "Two processes with the same dropout would waste one of them."
    first, second = (rank["random"] for rank in seen["ranks"])
    assert first[0] != second[0]
    for numbers, again, other in (first, second):
        assert numbers == again != other


def test_the_processes_agree(seen):
    "On the loss; and a model that differs, or an error of the first, is known to both."
    first, second = seen["ranks"]
    assert first["mean"] == second["mean"] == 0.5  # of ranks 0 and 1
    assert first["loss"] == second["loss"]
    assert "different models" in first["unlike"] and first["unlike"] == second["unlike"]
    assert first["error of the first"] == second["error of the first"] == "division by zero"


def test_one_process_writes_and_speaks(seen):
    "Each epoch is logged once and printed once."
    folder = Folder(seen["out"] / "run")
    lines = folder.file("log.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [0, 1]
    assert not any("repeated" in line for line in lines)
    assert folder.read_json("status.json")["state"] == "finished"
    assert seen["said"].count("epoch 1/1") == 1
    assert "2 processes" in json.loads(lines[0])["device"]


def test_weights_are_scored_by_both_with_the_numbers_of_the_run(seen):
    "By `mshnet test`; the line is printed once."
    folder = seen["out"] / "run"
    words = ["test", "--weight-path", folder / "best.pt", "--device=cpu"]
    done = in_two_processes("-m", "mshnet", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines().count(Folder(folder).read_json("scores.json")["line"]) == 1


def test_num_devices_starts_the_processes_and_the_run_goes_on_with_one(tmp_path, capsys):
    "Through both phases, with the settings as they are; then one process goes on."
    small = {"scenes": 8, "base_size": 32, "crop_size": 32, "choose": "last", "device": "cpu"}
    config = Config(**small, epochs=2, warm_epoch=0, output_dir=str(tmp_path / "run"))
    config = config.model_copy(update={"num_devices": 2, "schedule": "constant"})
    train(config)
    said = capsys.readouterr().out
    assert said.count("IoU") >= 3 and "2 processes" in said
    assert json.loads((tmp_path / "run" / "config.json").read_text()) == config.model_dump()
    again = train(config.model_copy(update={"epochs": 3, "num_devices": 0}))
    assert ["processes" in entry["device"] for entry in again.history] == [True, True, False]
    assert (tmp_path / "run" / "figures" / "gallery.png").exists()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_more_processes_than_gpus_are_refused():
    "Before any is started."
    with pytest.raises(UserError, match="this machine has"):
        train(Config(device="cuda", num_devices=torch.cuda.device_count() + 1))


def test_a_mistake_is_one_line_of_each_process(tmp_path):
    "And nothing is written."
    words = [*SMALL.split(), "--batch-size", "5", "--output-dir", tmp_path / "run"]
    done = in_two_processes("-m", "mshnet", "train", *words)
    said = [x for x in done.stderr.splitlines() if x.startswith("mshnet") and ":" in x]
    lines = [x for x in said if "stopped" not in x]  # by torchrun, before it had read its words
    speakers = [x.split(":")[0] for x in lines]
    assert lines and set(speakers) <= {"mshnet", "mshnet, process 1"}
    assert len(set(speakers)) == len(speakers)
    assert all("batch_size=5 cannot be shared by 2 devices: use 4 or 6" in x for x in lines)
    assert not (tmp_path / "run").exists()


def test_a_signal_reaches_all_processes_and_nothing_is_lost(tmp_path):
    "One is told; all end; what they say until then is heard; the status is that of the signal."
    words = ["train", *SMALL.split(), "--epochs=400", "--num-devices=2", "--log-every=1"]
    started = Python("-m", "mshnet", *words, f"--output-dir={tmp_path / 'run'}")
    folder = Folder(tmp_path / "run")
    until_it_trains(folder.path, started)
    again = run("-m", "mshnet", *words, f"--output-dir={folder.path}")
    assert "another process works in this folder" in again.stderr
    assert folder.read_json("status.json")["state"] == "running"  # that of the first
    started.send_signal(signal.SIGTERM)
    said, errors = started.communicate(timeout=900)
    assert (started.returncode, "Traceback" in said + errors) == (143, False), said + errors
    assert "its checkpoint is written" in said and errors.splitlines()[-1] == f"mshnet: {STOPPED}"
    seen = folder.read_json("status.json")
    assert (seen["state"], seen["reason"]) == ("stopped", "SIGTERM")
    assert read_checkpoint(folder.file("last.pt"))["epoch"] + 1 == seen["epochs_done"]
    with alone(folder.path):
        pass  # nobody trains there any more


LISTS_ITS_THREADS = """
import atexit, glob, sys
from pathlib import Path

def say():
    names = [Path(name).read_text().strip() for name in glob.glob("/proc/self/task/*/comm")]
    print("left:", sum("gloo" in name for name in names), file=sys.stderr)

atexit.register(say)  # the first one registered runs last
from mshnet.cli import main
sys.exit(main())
"""
EPOCH = [*SMALL.split(), "--epochs=1", "--log-every=1", "--precision=fp32"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    "An epoch of two processes that list their threads: what they said, and the run."
    top = tmp_path_factory.mktemp("whole")
    (top / "main.py").write_text(LISTS_ITS_THREADS)
    done = in_two_processes(top / "main.py", "train", *EPOCH, "--output-dir", top / "run")
    assert done.returncode == 0, done.stderr
    return done.stderr, Folder(top / "run")


@pytest.mark.nightly
def test_two_processes_go_on_within_an_epoch_as_if_they_had_not_stopped(whole, tmp_path):
    "Each with its own sum of losses; a session without time is one step, and no error."
    part = Folder(tmp_path / "run")
    for more in (["--max-hours=1e-6"], []):
        words = [*EPOCH, *more, "--num-devices=2", f"--output-dir={part.path}"]
        done = run("-m", "mshnet", "train", *words)
        assert done.returncode == (75 if more else 0), done.stdout + done.stderr
    want, have = (read_checkpoint(each.file("last.pt"))["model"] for each in (whole[1], part))
    assert part.history()[0]["begun_at_step"] == 1
    assert part.history()[0]["loss"] == whole[1].history()[0]["loss"]
    assert same(have, want)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_threads_of_the_process_group_end_before_python_does(whole):
    "One that still runs then may end its process by `terminate called`, after all is done."
    assert whole[0].count("left: 0") == 2


def test_a_mistake_reaches_the_caller_of_a_launched_run():
    "As it would without processes, and without torchrun's pages."
    words = ["--dataset-dir", "nowhere", "--device", "cpu", "--num-devices", "2"]
    done = run("-m", "mshnet", "train", *words)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("mshnet: dataset_dir=nowhere")
    assert "Traceback" not in done.stderr + done.stdout


def test_no_process_outlives_its_launcher(tmp_path, monkeypatch):
    "That ends after a second request, with time to record it; then the folder is free."
    (tmp_path / "python").write_text('#!/bin/sh\n[ "$RANK" = 0 ] && exit 7\nexec sleep 600\n')
    (tmp_path / "python").chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(Interrupted), _Processes(Config(num_devices=2, device="cpu"), []) as group:
        raise Interrupted("SIGINT", signal.SIGINT)
    assert [process.wait(60) for process in group.started] == [7, -signal.SIGKILL]


FAILS_ALONE = """
import os
if os.environ.get("RANK") == "1":
    import mshnet.detection
    from mshnet.core import UserError

    def refuse(data, rows, epoch, config):
        raise UserError("b.png: unreadable image; mend it")

    mshnet.detection.training_batch = refuse
"""


def test_the_status_names_the_mistake_of_another_process_than_the_first(tmp_path):
    "And not the lost connection, with which the first one fails after it."
    (tmp_path / "sitecustomize.py").write_text(FAILS_ALONE)
    words = ["-m", "mshnet", "train", *SMALL.split(), "--epochs=2", "--num-devices=2"]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = run(*words, f"--output-dir={tmp_path / 'run'}", PYTHONPATH=path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.splitlines()[-1] == "mshnet: b.png: unreadable image; mend it"
    seen = Folder(tmp_path / "run").read_json("status.json")
    assert (seen["state"], seen["epochs_done"]) == ("failed", 0)
    assert seen["reason"] == "UserError: b.png: unreadable image; mend it"


def test_what_two_processes_trained_is_scored_and_drawn_by_one(seen, capsys):
    "What was said of their machine is not said of this one."
    folder = seen["out"] / "run"
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"num_devices": 2, "device": "xla"}))
    assert main(["test", "--weight-path", str(folder / "best.pt")]) == 0
    line = Folder(folder).read_json("scores.json")["line"]
    assert capsys.readouterr().out.splitlines()[-1] == line
    gallery(folder)


def test_only_some_of_torchruns_variables_are_a_mistake(tmp_path, monkeypatch, capsys):
    "Some schedulers set RANK."
    monkeypatch.setenv("RANK", "0")
    train = "train", "--device", "cpu", "--output-dir", tmp_path / "run"
    assert "start by torchrun, or unset RANK" in refused(capsys, *train)
    for name, value in {"WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert Detector("pretrained", "cpu").device.ranks.count == 1  # of a script that is not ours
    assert "RANK is set, but not MASTER_ADDR: start by" in refused(capsys, *train)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_gpu_trains_under_torchrun(tmp_path):
    "One process, all of the machinery: NCCL, batch norm over processes, objects sent around."
    words = [*SMALL.replace("cpu", "cuda").split(), "--epochs", "2", "--warm-epoch", "0"]
    one = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", "-m", "mshnet"]
    done = run(*one, "train", *words, "--output-dir", tmp_path / "run")
    assert done.returncode == 0, done.stderr


KILLED = """
import os
if os.environ.get("RANK") == "1":
    from mshnet.predict import _Results
    write, done = _Results.write, []

    def writes(*frame):
        if len(done) == 2:
            os.kill(os.getpid(), 9)
        done.append(1)
        return write(*frame)

    _Results.write = writes
"""


@pytest.fixture(scope="module")
def predicted(tmp_path_factory, weights):
    "Files, weights for them, and what one process makes of them."
    top = tmp_path_factory.mktemp("predicted")
    words = [mixed(top / "data"), "--weight-path", weights, "--device", "cpu"]
    done = run("-m", "mshnet", "predict", *words, "--output-dir", top / "one")
    assert (done.returncode, "1 skipped" in done.stdout) == (1, True), done.stderr
    return words, top / "one"


def test_processes_share_the_files_of_a_prediction(predicted, tmp_path):
    "The same pictures and tables as of one, printed once, and the same status."
    words, one = predicted
    started = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = run(*started, "-m", "mshnet", "predict", *words, "--output-dir", tmp_path / "two")
    assert done.returncode == 1, done.stderr
    assert done.stdout.count("11 frames of 7 files") == 1
    assert done.stderr.count("3.png: unreadable image; see skipped.csv") == 1
    assert results(tmp_path / "two") == results(one)
    assert Folder(tmp_path / "two").read_json("summary.json")["state"] == "finished"


def test_a_killed_process_costs_its_unfinished_files_alone(predicted, tmp_path):
    "The others end with it; the same command, here with one process, predicts what is left."
    words, one = predicted
    words = ["-m", "mshnet", "predict", *words, "--output-dir", tmp_path / "two"]
    (tmp_path / "sitecustomize.py").write_text(KILLED)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = run(*words, "--num-devices=2", PYTHONPATH=path)
    assert (done.returncode, "a process was killed (is memory" in done.stderr) == (2, True)
    assert Folder(tmp_path / "two").read_json("summary.json")["state"] == "failed"
    done = run(*words)
    assert re.search(r"resume .*: [2-6] files done", done.stderr)
    assert results(tmp_path / "two") == results(one)


def test_what_cannot_be_shared_is_one_line(capsys):
    "A mistake in a launched process; a task that predicts in one process."
    done = run("-m", "mshnet", "predict", "nowhere.png", "--device=cpu", "--num-devices=2")
    assert (done.returncode, "Traceback" in done.stdout + done.stderr) == (2, False)
    assert done.stderr.splitlines()[-1].endswith("there is no such file or folder")
    said = refused(capsys, "predict a.npz --task=eit --num-devices=2")
    assert "has no option --num-devices" in said
