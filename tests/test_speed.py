"What makes it fast changes nothing else: cache, precision, compiler, threads, order of writing."

import os
import re
import subprocess
import sys
import threading
import tracemalloc
from functools import partial
from types import SimpleNamespace

import plain
import pytest
import torch
from conftest import TOP, make_dataset, same, tiny
from torch import nn

import mshnet.device
from mshnet.core import UserError
from mshnet.cpu import attend_on_cpu, use_cpu_passes
from mshnet.data import LOADED, InFiles, load_data
from mshnet.detection import Detection, fuse_bn
from mshnet.device import FIX_THREADS, busy_cores, device_for, open_device, share_cores, update
from mshnet.model import ChannelAttention, MSHNet, SpatialAttention, attend
from mshnet.recipe import Config
from mshnet.run import read_checkpoint, write_checkpoint
from mshnet.train import train

tiny = partial(tiny, epochs=2)


class OneLayer(Detection):
    "A task so small that compiling it takes seconds, and a run less."

    def model(self):
        "One weight per channel."
        torch.manual_seed(0)
        return nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 1, 1))

    def predict(self, model, batch, phase):
        "A weighted sum."
        return model(batch.image.float() / 255)

    def loss(self, model, batch, phase):
        "Distance to the mask."
        return (self.predict(model, batch, phase).float() - batch.mask.float()).square().mean()


@pytest.fixture
def threads(monkeypatch):
    "The number of threads as a fresh process has it, put back at the end."
    before = torch.get_num_threads()
    for name in FIX_THREADS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("mshnet.device.USUAL_THREADS", 4)
    monkeypatch.setattr("mshnet.device._CHOSEN", {"threads": 4})
    monkeypatch.setattr("mshnet.device._own_cores", lambda: [0, 1, 2, 3])
    torch.set_num_threads(4)
    yield lambda busy: monkeypatch.setattr("mshnet.device.busy_cores", lambda: busy)
    torch.set_num_threads(before)


@pytest.mark.parametrize(("busy", "count"), [(0.3, 4), (1.2, 3), (2.6, 1), (4.0, 1)])
def test_threads_make_room_for_other_programs(threads, busy, count):
    "As many as others leave cores, at least one; and back again when they end."
    threads(busy)
    device = open_device("cpu", "fp32")
    assert torch.get_num_threads() == device.facts()["threads"] == count
    assert bool(device.message) == (count != 4)
    threads(0.0)
    device.message = ""
    share_cores(device)  # too soon
    assert torch.get_num_threads() == count and not device.message
    share_cores(device, every=0)
    assert torch.get_num_threads() == 4
    assert count == 4 or f"4 threads from here on, {count}" in device.message


@pytest.mark.parametrize("how", [*FIX_THREADS, "torch", "deterministic"])
def test_threads_that_were_asked_for_stay(threads, monkeypatch, how):
    "A run only records how busy the cores are."
    threads(3.0)
    if how in FIX_THREADS:
        monkeypatch.setenv(how, "4")
    elif how == "torch":
        torch.set_num_threads(2)
    same = how == "deterministic"
    device = device_for(Config(device="cpu", precision="fp32", deterministic=same))
    assert device.facts() == {"threads": 2 if how == "torch" else 4, "busy_cores": 3.0}
    assert not device.message


def test_a_run_reports_a_busy_machine(threads, tmp_path, capsys):
    "In its lines, and in its log."
    threads(2.6)
    config = tiny(tmp_path, epochs=1)
    run = train(config, OneLayer(config))
    assert "other programs keep 2.6 busy" in capsys.readouterr().out
    assert run.history[0]["busy_cores"] == 2.6


def test_a_busy_program_is_counted_and_this_process_is_not(monkeypatch):
    "All that our cores do, without what we do ourselves; a core of other programs alone is none."
    monkeypatch.setattr("mshnet.device._own_cores", lambda: [0, 2])
    monkeypatch.setattr("psutil.cpu_percent", lambda seconds, percpu: [100.0, 100.0, 75.0])
    moments, used = iter([0.0, 1.0, 10.0, 12.0]), iter([5.0, 5.5, 7.0, 7.0])
    clock = {"monotonic": lambda: next(moments), "process_time": lambda: next(used)}
    monkeypatch.setattr("mshnet.device.time", SimpleNamespace(**clock))
    assert busy_cores() == pytest.approx(1.25)  # 1.75 busy, half a core of them our own
    assert busy_cores() == pytest.approx(1.75)


def test_a_container_may_have_fewer_cores_than_its_machine(tmp_path, monkeypatch):
    "With a thread for each core of the machine, all would wait for the next period."
    monkeypatch.setattr("psutil.Process.cpu_affinity", lambda self: [3, 4, 5], raising=False)
    for quota, count in (("150000 100000", 2), ("5000 100000", 1), ("max 100000", 3)):
        (tmp_path / "cpu.max").write_text(f"{quota}\n")
        assert mshnet.device.core_count(tmp_path) == count


def test_waiting_threads_sleep_soon_unless_the_user_has_set_how():
    "In a fresh process, before torch is loaded; a user's own setting stays."
    line = "import os, mshnet; print(os.environ.get('GOMP_SPINCOUNT'))"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    cases = [({}, "10000"), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")]
    for own, want in cases:
        done = subprocess.run([sys.executable, "-c", line], env=env | own, capture_output=True)
        assert done.stdout.decode().strip() == want


def test_mshnet_is_loaded_before_torch():
    "By the tools that train and the runners; afterwards is too late for the setting above."
    for path in (TOP / "tools/pretrain.py", *TOP.glob("nbs/run/*.py")):
        found = re.findall(r"(?m)^(?:import|from) (mshnet|torch)\b", path.read_text("utf-8"))
        assert found[:1] != ["torch"], path


def gradients(model, image, dtype=torch.float32):
    "Loss and gradients of one training pass of a small loss."
    model.train().zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        masks, logits = model(image)
    loss = sum(torch.sigmoid(m.float()).mean() for m in (*masks, logits))
    loss.backward()
    return loss.item(), {n: p.grad.clone() for n, p in model.named_parameters()}


def plain_copy(model):
    "The same weights in the plain script's network, written without a line of ours."
    network = plain.MSHNet(model.conv_init.in_channels)
    network.load_state_dict(model.state_dict())
    return network.to(model.conv_init.weight.dtype)


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_backward_passes_by_hand_are_those_of_torch(layout, channels, monkeypatch):
    "In float64, where rounding hides nothing: every gradient of the whole network."
    monkeypatch.setattr("mshnet.cpu._AVX2", True)  # 3x3 kernels by hand, on any CPU
    torch.manual_seed(0)
    model = use_cpu_passes(MSHNet(channels)).double().to(memory_format=layout)
    image = torch.randn(2, channels, 48, 32, dtype=torch.float64).contiguous(memory_format=layout)
    loss, have = gradients(model, image)
    want_loss, want = gradients(plain_copy(model), image)
    assert loss == pytest.approx(want_loss, abs=1e-12)
    for name, value in want.items():
        torch.testing.assert_close(have[name], value, rtol=1e-7, atol=1e-12, msg=name)


def test_equal_maxima_share_their_gradient():
    "As torch's amax has it: here every channel is there twice."
    torch.manual_seed(0)
    ca, sa = ChannelAttention(16).double(), SpatialAttention().double()
    nn.init.zeros_(ca.fc2.weight)
    half = torch.randn(2, 8, 6, 5, dtype=torch.float64)
    results = []
    for finish in (attend_on_cpu, attend):
        y = torch.cat([half, half], 1).requires_grad_()
        out = finish(y, torch.ones_like(y), ca, sa)
        (out * torch.arange(out.numel()).view_as(out)).sum().backward()
        results.append(y.grad)
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("change", ["method", "class", "bias", "border"])
def test_an_attention_of_ones_own_is_computed(change, monkeypatch):
    "Not ours by hand, which reads the weights alone."
    ca, sa, y = ChannelAttention(16), SpatialAttention(), torch.randn(1, 16, 6, 5)
    if change == "bias":
        ca.fc1 = nn.Conv2d(16, 1, 1)
    elif change == "border":
        sa.conv1 = nn.Conv2d(2, 1, 7, padding=3, bias=False, padding_mode="reflect")
    else:
        own = ca if change == "method" else ChannelAttention
        monkeypatch.setattr(own, "forward", lambda *x: torch.ones(1, 16, 1, 1))
    assert attend_on_cpu(y, y, ca, sa).equal(attend(y, y, ca, sa))


def test_bf16_by_hand_is_as_near_to_float32_as_plain_bf16():
    "Sixteen bits are not made worse: errors of the gradients beside those of torch's operations."
    torch.manual_seed(0)
    model = use_cpu_passes(MSHNet()).to(memory_format=torch.channels_last)
    image = torch.randn(2, 3, 64, 64)
    _, have = gradients(model, image, torch.bfloat16)
    _, exact = gradients(plain_copy(model), image)
    _, plain = gradients(plain_copy(model), image, torch.bfloat16)

    def error(found):
        far = sum((found[n] - exact[n]).square().sum() for n in exact)
        return (far / sum(v.square().sum() for v in exact.values())).sqrt().item()

    assert error(have) < 1.3 * error(plain) < 1


def test_folding_leaves_the_prediction():
    "Batch norm inside the convolutions: the same logits to rounding, the model untouched."
    torch.manual_seed(0)
    model, image = MSHNet().double(), torch.randn(2, 3, 48, 48, dtype=torch.float64)
    with torch.no_grad():
        model.train()(image)
        want, folded = model.eval()(image), fuse_bn(model)
        have = folded(image)
    torch.testing.assert_close(have[1], want[1], rtol=1e-9, atol=1e-9)
    norms = [sum(isinstance(x, nn.BatchNorm2d) for x in m.modules()) for m in (model, folded)]
    assert norms[0] > 30 and norms[1] == 0


def test_a_model_in_float32_is_scored_as_it_is():
    "float32 is the arithmetic of the paper's code: nothing is folded there."
    task, device = Detection(tiny()), open_device("cpu", "fp32")
    model = device.to_device(task.model())
    assert task.for_scoring(model, device) is model
    assert task.for_scoring(model, open_device("cpu", "bf16")) is not model


def test_fp16_scales_its_loss_and_a_checkpoint_keeps_the_scale(tmp_path):
    "A run in float16 trains, and goes on with the factor it had found."
    config = tiny(tmp_path / "run", precision="fp16", epochs=1)
    train(config, OneLayer(config))
    kept = read_checkpoint(tmp_path / "run" / "last.pt")["scaler"]
    assert kept["scale"] > 1 and kept["_growth_tracker"] == 2  # two steps without overflow
    config = config.model_copy(update={"epochs": 2})
    longer = train(config, OneLayer(config))
    assert read_checkpoint(tmp_path / "run" / "last.pt")["scaler"]["_growth_tracker"] == 4
    assert all(e["device"].startswith("cpu, fp16") for e in longer.history)


def test_a_step_that_overflows_is_left_out_and_the_scale_halved():
    "Infinite gradients must not reach the weights."
    device = open_device("cpu", "fp16")
    model = nn.Linear(2, 1)
    optimizer, before = torch.optim.SGD(model.parameters(), lr=1.0), model.weight.clone()
    update(device, model(torch.ones(1, 2)).sum() * 1e38, optimizer)
    assert torch.equal(model.weight, before)
    assert device.scaler.get_scale() == 2.0**15
    update(device, model(torch.ones(1, 2)).sum(), optimizer, clip=0.5)
    assert (model.weight - before).norm() < 0.51


def test_precisions_of_a_device_are_said():
    "What a device cannot compute in is refused with what it can."
    device = open_device("cpu", "fp32")
    device.precisions = ("bf16", "fp32")
    with pytest.raises(UserError, match="precision=fp16: not on cpu; use bf16 or fp32"):
        device.set_precision("fp16")


def test_deterministic_runs_repeat_to_the_last_bit(tmp_path):
    "Two runs of the same settings: log and weights."
    runs = []
    for name in "ab":
        once = {"epochs": 1, "warm_epoch": -1, "deterministic": True}
        run = train(tiny(tmp_path / name, precision="bf16", **once))
        assert torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(False)  # the second run sets it, too
        model = read_checkpoint(run.folder / "last.pt")["model"]
        runs.append((model, [e["loss"] for e in run.history], run.scores["line"]))
    assert runs[0][1:] == runs[1][1:]
    assert same(runs[0][0], runs[1][0])
    device_for(tiny())
    assert not torch.are_deterministic_algorithms_enabled()


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    "The write of epoch 0 ends only after epoch 1 was trained, and holds epoch 0's weights."
    trained, wrote, real = threading.Event(), [], write_checkpoint
    loss = OneLayer.loss

    def slow(content, *paths):
        if content["epoch"] == 0:
            assert trained.wait(60)
        wrote.append((content["epoch"], content["model"]["1.weight"].clone()))
        real(content, *paths)

    def watched(self, model, batch, phase):
        if phase == "full":  # epoch 1
            trained.set()
        return loss(self, model, batch, phase)

    monkeypatch.setattr("mshnet.train.write_checkpoint", slow)
    monkeypatch.setattr(OneLayer, "loss", watched)
    config, alone = tiny(tmp_path / "run"), tiny(tmp_path / "alone", epochs=1)
    train(config, OneLayer(config))
    assert [epoch for epoch, _ in wrote] == [0, 1]
    assert not torch.equal(wrote[0][1], wrote[1][1])
    monkeypatch.undo()
    train(alone, OneLayer(alone))
    kept = read_checkpoint(tmp_path / "alone" / "last.pt")["model"]
    assert torch.equal(kept["1.weight"], wrote[0][1])


def test_streamed_pixels_train_the_same_run(tmp_path):
    "From their files: the same data by their hash, the same losses, the same scores."
    folder = make_dataset(tmp_path / "data", train=8, test=4)
    runs = []
    for cache in ("host", "stream"):
        run = train(tiny(tmp_path / cache, dataset_dir=str(folder), cache=cache, choose="val"))
        runs.append(([e["loss"] for e in run.history], run.scores["line"]))
        runs[-1] += (run.scores["protocol"]["split_hash"],)
    assert runs[0] == runs[1]


@pytest.mark.nightly
def test_streaming_takes_bounded_memory(tmp_path):
    "Images are read, checked, hashed and trained on in less than half of the memory of them all."
    folder = make_dataset(tmp_path / "data", train=120, test=2, size=512)
    config = tiny(dataset_dir=str(folder), cache="stream", num_workers=1)
    tracemalloc.start()
    parts, findings = load_data(config)
    assert isinstance(parts["train"].pairs, InFiles) and not findings.errors
    task, device = Detection(config), open_device("cpu")
    digest = parts["train"].hash
    plan = task.plan(parts["train"], 0)
    assert sum(len(b.image) for b in task.batches(device, parts["train"], plan, 0)) == 120
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 120 * 2 * 512**2 / 2  # bytes; what four readers hold has come to 16 MB
    host = config.model_copy(update={"cache": "host"})
    kept = load_data(host)[0]["train"]
    assert kept.in_memory and kept.hash == digest


def test_auto_streams_what_memory_has_no_room_for(tmp_path, monkeypatch):
    "Half of what is free, for all splits together, and for all processes."
    config = tiny(dataset_dir=str(make_dataset(tmp_path / "data", train=6, test=2)))
    half = 6 * 2 * 1024  # bytes
    for free, count, kept in ((2 * half, 1, True), (2 * half - 4, 1, False), (2 * half, 2, False)):
        monkeypatch.setenv("WORLD_SIZE", str(count))
        monkeypatch.setattr("mshnet.data.free_memory", lambda free=free: free)
        LOADED.clear()
        assert load_data(config)[0]["train"].in_memory is kept


def test_an_image_that_vanishes_while_streaming_is_named(tmp_path):
    "A file that was there when the run began."
    folder = make_dataset(tmp_path / "data")
    split = load_data(tiny(dataset_dir=str(folder), cache="stream"))[0]["train"]
    (folder / "images" / "train_3.png").unlink()
    with pytest.raises(UserError, match="train_3: name without an image"):
        split.pairs[3]
