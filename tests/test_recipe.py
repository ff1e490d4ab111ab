"The recipe: every setting does what it says, the paper's stays what it was, averages survive."

import json
import math

import numpy as np
import pytest
import torch
from conftest import TOP, make_dataset, same
from scipy import ndimage

from mshnet.augment import AugmentParams, _placement, augment, sample_clutter, sample_params
from mshnet.core import UserError, configure, run_name, settings_from
from mshnet.cpu import use_cpu_passes
from mshnet.detection import NETWORKS, Detection, normalise
from mshnet.evaluate import evaluate
from mshnet.loss import bce_loss, mshnet_loss, soft_iou_loss
from mshnet.model import MSHNet, init_heads
from mshnet.recipe import FIRST_DEFAULTS, PRESETS, Config
from mshnet.run import read_checkpoint, write_checkpoint
from mshnet.train import train

SMALL = {"scenes": 8, "base_size": 32, "crop_size": 32, "batch_size": 2, "epochs": 2}
SMALL |= {"device": "cpu", "precision": "fp32"}


def small(folder="", **changes):
    "A run of two epochs of four steps, by the default recipe."
    return Config(**{**SMALL, "output_dir": str(folder), **changes})


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("optimizer", "sgd", "'adamw', 'adam' or 'adagrad'"),
        ("augment", "none", "'flips', 'paper', 'robust' or 'turns'"),
        ("ema", 1, "a value less than 1"),
        ("lr", 0, "a value greater than 0"),
        ("lr", "fast", "a valid number"),
        ("warmup_steps", -2, "a value greater than or equal to -1"),
        ("warmup_steps", 1.5, "a valid integer"),
        ("deterministic", "maybe", "true or false"),
        ("crop_size", 250, "a multiple of 16"),
        ("dataset_dir", 2024, "a valid string (papermill: -r)"),
        ("epochs", True, "a value other than true and false"),
    ],
)
def test_a_value_out_of_range_is_one_line(name, value, line):
    "Its name, its value, what to write."
    with pytest.raises(UserError) as error:
        Config(**{name: value})
    assert str(error.value) == f"{name}={value} is not possible: use {line}"


def test_the_rate_is_warm_up_times_cosine():
    "Against the formula, step by step; the last rate is lr_end of the first."
    task = Detection(small(lr=0.01, epochs=5, warmup_steps=4, lr_end=0.1))
    for step in range(50):
        want = 0.01 * min((step + 1) / 4, 1) * (0.1 + 0.9 * (1 + math.cos(math.pi * step / 49)) / 2)
        assert task.rate(step, per_epoch=10) == pytest.approx(want)
    assert task.rate(49, per_epoch=10) == pytest.approx(0.001)
    log = Detection(small(lr=0.01, schedule="constant", warmup_steps=0))
    assert [log.rate(step, 10) for step in (0, 49)] == [0.01, 0.01]


def test_the_loss_is_the_mean_of_five_outputs():
    "Each against the truth at its own size; the default is soft IoU plus cross-entropy."
    gen = torch.Generator().manual_seed(0)
    masks = [torch.randn(2, 1, 32 // 2**i, 32 // 2**i, generator=gen) for i in range(4)]
    logits = torch.randn(2, 1, 32, 32, generator=gen)
    truth = (torch.rand(2, 1, 32, 32, generator=gen) < 0.05).float()
    want, scale = torch.zeros(2), truth
    for i, output in enumerate([logits, *masks]):
        scale = torch.nn.functional.max_pool2d(scale, 2) if i > 1 else scale
        prob = torch.sigmoid(output)
        inter, union = (prob * scale).sum((1, 2, 3)), (prob + scale - prob * scale).sum((1, 2, 3))
        log = scale * prob.log() + (1 - scale) * (1 - prob).log()
        want += 1 - (inter + 1) / (union + 1) - log.mean((1, 2, 3))
    torch.testing.assert_close(mshnet_loss(masks, logits, truth, "soft_iou+bce"), want / 5)
    one = soft_iou_loss(logits, truth) + bce_loss(logits, truth)
    torch.testing.assert_close(mshnet_loss([], logits, truth, "soft_iou+bce"), one)


@pytest.mark.parametrize("loss", ["soft_iou", "bce", "soft_iou+bce"])
def test_an_image_without_a_target_is_learned_from(loss):
    "Its gradient pushes the prediction down, however much is predicted."
    for z in (-8.0, 0.0, 8.0):
        logits = torch.full((1, 1, 16, 16), z, requires_grad=True)
        mshnet_loss([], logits, torch.zeros(1, 1, 16, 16), loss).mean().backward()
        assert (logits.grad > 0).all(), z


def test_the_start_is_nearly_empty_and_is_the_full_size_head():
    "Two percent of the pixels, not half of them; published weights keep their names."
    torch.manual_seed(0)
    plain = MSHNet()
    torch.manual_seed(0)
    gentle = init_heads(MSHNet(), -4.0, "full_size").eval()
    with torch.no_grad():
        masks, logits = gentle(torch.randn(2, 3, 64, 64))
    torch.testing.assert_close(logits, masks[0])
    assert logits.sigmoid().mean() < 0.06
    made, other = plain.state_dict(), gentle.state_dict()
    changed = {name for name in made if not torch.equal(made[name], other[name])}
    assert changed == {f"output_{i}.bias" for i in range(4)} | {"final.weight", "final.bias"}
    assert made.keys() == other.keys()


def test_parts_that_join_late_have_a_rate_of_their_own(tmp_path):
    "Three heads and the fusing convolution; also in a run that is resumed."
    config = small(tmp_path / "run", join_rate=0.1, schedule="constant", warmup_steps=0)
    for epochs in (2, 3):
        run = train(config.model_copy(update={"epochs": epochs}))
        groups = read_checkpoint(run.folder / "last.pt")["optimizer"]["param_groups"]
        assert [len(g["params"]) for g in groups][1] == 8
        assert [g["lr"] for g in groups] == pytest.approx([0.001, 0.0001])


@pytest.mark.parametrize("crop", ["native", "resize"])
def test_a_share_of_the_crops_holds_a_target(crop):
    "All of them where that is asked for, wherever the target is; native pixels keep their size."
    sizes = {"crop": crop, "base_size": 256, "crop_size": 64, "clutter_share": 0}
    gen, held = np.random.default_rng(0), 0
    for i in range(60):
        mask = np.zeros((300, 420), np.uint8)
        row, col = gen.integers(0, 295), gen.integers(0, 415)
        mask[row : row + 5, col : col + 5] = 1  # large enough for every scale
        drawn = sample_params(Config(**sizes, target_share=1.0), 0, i)
        assert augment(mask * np.uint8(200), mask, drawn, 64)[1].any(), (i, drawn)
        chance = sample_params(Config(**sizes, target_share=0.0), 0, i)
        held += augment(mask * np.uint8(200), mask, chance, 64)[1].any()
        if crop == "native":
            assert _placement(mask, drawn, 64)[:2] == (300, 420)
    assert held < 30


@pytest.mark.parametrize(
    ("kind", "least", "most", "aspect"), [("flips", 0.7, 1.5, 1.2), ("robust", 0.5, 1.6, 1.3)]
)
def test_scales_of_native_crops_stay_within_their_limits(kind, least, most, aspect):
    "Their area is scaled within the square of the limits, which are nearly reached."
    scales = np.array([sample_params(Config(augment=kind), 0, i).scale for i in range(300)])
    sizes, shapes = np.sqrt(scales.prod(1)), scales[:, 1] / scales[:, 0]
    assert least <= sizes.min() < least * 1.1 and most / 1.1 < sizes.max() <= most
    assert 1 / aspect <= shapes.min() < 1 < shapes.max() <= aspect


@pytest.mark.parametrize("colours", [(), (3,)])
def test_robust_crops_look_like_those_of_other_cameras(colours):
    "Grey levels change, targets do not move, and the same parameters give the same crop."
    gen = np.random.default_rng(0)
    image = gen.integers(60, 100, (96, 96, *colours), dtype=np.uint8)
    mask = np.zeros((96, 96), np.uint8)
    mask[40:45, 50:56] = 1
    image[mask > 0] = 250
    means, found = [], 0
    for i in range(40):
        drawn = sample_params(Config(augment="robust", clutter_share=0, target_share=1), 0, i)
        pixels, truth = augment(image, mask, drawn, 64)
        plain, same = augment(image, mask, drawn._replace(sensor=0), 64)
        assert pixels.shape == plain.shape == (64, 64, *colours) and pixels.dtype == np.uint8
        assert np.array_equal(truth, same)
        assert np.array_equal(pixels, augment(image, mask, drawn, 64)[0])
        means.append(float(pixels.mean()) - float(plain.mean()))
        found += pixels[truth > 0].mean() > pixels[truth == 0].mean() + 20
    assert found > 35 and min(means) < -10 and max(means) > 10


def test_turns_leave_the_pixels_of_the_image_as_they_are():
    "Every crop is a part of the image or of one of its eight turns; the mask goes with it."
    gen = np.random.default_rng(0)
    image = gen.permutation(np.arange(96 * 80) % 251).astype(np.uint8).reshape(96, 80)
    turns = [np.rot90(a, k) for a in (image, image[:, ::-1]) for k in range(4)]
    seen, blurred = set(), 0
    for epoch in range(60):
        drawn = sample_params(Config(crop="native", crop_size=32, clutter_share=0), epoch, 0)
        blurred += drawn.blur > 0
        drawn = drawn._replace(blur=0.0)
        crop, truth = augment(image, (image > 200).astype(np.uint8), drawn, 32)
        windows = [np.lib.stride_tricks.sliding_window_view(turn, (32, 32)) for turn in turns]
        found = [k for k, w in enumerate(windows) if (w == crop).all((2, 3)).any()]
        assert len(found) == 1 and np.array_equal(truth, crop > 200), epoch
        seen.update(found)
    assert seen == set(range(8)) and 15 < blurred < 45


def test_a_share_of_crops_gets_clutter_and_nothing_else_changes():
    "It is sampled last; the paper's recipe has none."
    shares = {share: Config(clutter_share=share) for share in (0, 0.25, 1)}
    drawn = {k: [sample_params(c, 1, i) for i in range(400)] for k, c in shares.items()}
    count = {share: sum(bool(d.clutter) for d in each) for share, each in drawn.items()}
    assert count[0] == 0 and 70 < count[0.25] < 130 and count[1] == 400
    assert [d._replace(clutter=()) for d in drawn[1]] == drawn[0]
    assert not any(sample_params(Config(preset="paper"), 1, i).clutter for i in range(50))


def test_clutter_hides_labels_and_is_larger_than_a_target():
    "Where it is, the labels go; far from it pixels stay; what is not at the rim is a long bar."
    image = np.random.default_rng(0).integers(90, 110, (128, 128), dtype=np.uint8)
    mask, covered, changed = np.ones_like(image), [], []
    for seed in range(100):
        drawn = AugmentParams(False, 0, 0, 0, 0)
        drawn = drawn._replace(clutter=sample_clutter(np.random.default_rng(seed)))
        pixels, label = augment(image, mask, drawn, 128)
        hidden = label == 0
        far = ~ndimage.binary_dilation(hidden, iterations=40)
        changed += [(pixels[far] != image[far]).mean()] if far.any() else []
        if drawn.clutter[4] < 8 * 65_536:  # a bar or a block
            rows, columns = (np.flatnonzero(hidden.any(axis)) for axis in (1, 0))
            inside = hidden.any() and not (hidden[[0, -1]].any() or hidden[:, [0, -1]].any())
            assert not inside or np.hypot(np.ptp(rows), np.ptp(columns)) > 60
        covered.append(hidden.mean())
    assert np.mean(np.array(changed) > 0) < 0.1  # a wave can nearly reach a far place
    assert 0.1 < np.mean(covered) < 0.6 and max(covered) > 0.8


def test_the_texture_of_clutter_shows_no_target():
    "Where everything is covered, the place onto which a target is turned shows none."
    image = np.random.default_rng(0).integers(58, 63, (128, 128), dtype=np.uint8)
    image[:, 64:] += 60  # the mean of all is not that of the surroundings
    mask = np.zeros_like(image)
    for row, column in ((20, 30), (90, 100), (0, 60)):
        mask[row : row + 5, column : column + 6] = 1
    image[mask > 0] += 80
    whole = [1 << 16, 0, 1 << 16, 0, 32 << 16, 32 << 16, 1 << 16, 40 << 16, 1 << 16]
    clutter = (*whole, *[0] * (len(sample_clutter(np.random.default_rng(0))) - 9))
    drawn = AugmentParams(False, 0, 0, 0, 0, clutter=clutter)
    pixels, label = augment(image, mask, drawn, 128)
    empty = augment(np.where(mask > 0, image - 80, image), mask, drawn, 128)[0]
    assert not label.any()
    half = int(empty[:, :64].max()) - int(empty[:, 64:].min())
    assert half > 50  # the texture itself is there
    turned = ndimage.binary_dilation(mask[::-1, ::-1], iterations=4)
    for side in (np.s_[:, :60], np.s_[:, 68:]):
        spots, rest = pixels[side][turned[side]], pixels[side][~turned[side]]
        assert abs(spots.mean() - rest.mean()) < 8


def test_a_run_of_before_clutter_resumes_without_it(tmp_path):
    "Its settings know nothing of it, and the default has it."
    settings = {**SMALL, "epochs": 3, "schedule": "constant", "warmup_steps": 0}
    whole = train(Config(**settings, clutter_share=0, output_dir=str(tmp_path / "whole")))
    start = Config(**settings | {"epochs": 1}, clutter_share=0, output_dir=str(tmp_path / "run"))
    run = train(start)
    content = read_checkpoint(run.folder / "last.pt")
    for name in ("last.pt", "best.pt"):
        older = {k: v for k, v in content["config"].items() if k != "clutter_share"}
        write_checkpoint(content | {"config": older}, run.folder / name)
    (run.folder / "config.json").write_text(json.dumps(older))
    again = configure({"resume": str(run.folder), "epochs": 3, "device": "cpu"})
    assert again.clutter_share == 0 and Config().clutter_share > 0
    longer = train(again.model_copy(update={"output_dir": str(run.folder)}))
    assert same(*(read_checkpoint(x.folder / "last.pt")["model"] for x in (longer, whole)))
    with pytest.raises(UserError, match=r"clutter_share 0\.0 -> 0\.25"):
        train(Config(**settings | {"epochs": 4}, output_dir=str(run.folder)))


def test_the_papers_recipe_is_the_plain_loop(tmp_path):
    "Two epochs of one head by plain IoU, two of all by SLS, Adagrad at 0.05: to the last bit."
    paper = {**PRESETS["paper"], **SMALL, "epochs": 4, "warm_epoch": 1}
    config = Config(**paper, output_dir=str(tmp_path / "run"))
    run, task = train(config), Detection(config)
    torch.manual_seed(0)
    model = use_cpu_passes(MSHNet()).to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    split, losses = task.splits()["train"], []
    for epoch in range(4):
        for rows in task.plan(split, epoch):
            batch = task.batch(split, rows, epoch)
            image = normalise(batch.image.contiguous(memory_format=torch.channels_last))
            loss = mshnet_loss(*model(image, deep=epoch > 1), batch.mask).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    assert same(model.state_dict(), read_checkpoint(run.folder / "last.pt")["model"])
    logged = [entry["loss"] for entry in run.history]
    assert logged == pytest.approx(np.reshape(losses, (4, 4)).mean(1), rel=1e-6)


def test_names_of_runs_stay_what_they_were():
    "A run of the first release is found by its settings: these names are its own."
    paper = PRESETS["paper"] | {"dataset_dir": "sirst"}
    assert run_name(Config(**paper)) == "sirst-8f268de4"
    assert run_name(Config(**paper | {"choose": "val"})) == "sirst-d7f5e1f5"
    assert run_name(Config(dataset_dir="sirst")) not in ("sirst-8f268de4", "sirst-d7f5e1f5")


def test_a_run_of_the_first_release_resumes_as_it_was(tmp_path):
    "Its settings and checkpoint know nothing of optimizers, schedules and averages."
    paper = {**PRESETS["paper"], **SMALL, "epochs": 3, "warm_epoch": 0}
    whole = train(Config(**paper, output_dir=str(tmp_path / "whole")))
    run = train(Config(**paper | {"epochs": 2}, output_dir=str(tmp_path / "run")))
    new = set(Config.model_fields) - {"lr", "warm_epoch", "choose", "epochs", "weight_decay"}
    new &= FIRST_DEFAULTS.keys() | {"lr_end", "join_rate"}
    new -= {"clip_grad", "crop_size"}  # which the first release recorded
    settings = json.loads((run.folder / "config.json").read_text())
    settings = {k: v for k, v in settings.items() if k not in new}
    assert "optimizer" not in settings and "lr" in settings
    (run.folder / "config.json").write_text(json.dumps(settings))
    content = read_checkpoint(run.folder / "last.pt")
    content = {k: v for k, v in content.items() if k != "trained"}
    write_checkpoint(content | {"format": 2, "config": settings}, run.folder / "last.pt")
    (run.folder / "previous.pt").unlink()
    again = configure({"resume": str(run.folder), "epochs": 3, "device": "cpu"})
    assert (again.optimizer, again.ema, again.loss) == ("adagrad", 0.0, "sls")
    longer = train(again.model_copy(update={"output_dir": str(run.folder)}))
    assert same(*(read_checkpoint(x.folder / "last.pt")["model"] for x in (longer, whole)))
    with pytest.raises(UserError, match=r"optimizer adagrad -> adamw.*--resume .* takes them"):
        train(small(run.folder))


def test_averages_follow_the_formula_and_are_what_is_scored(tmp_path):
    "Weights and batch norm's statistics, with a decay that grows; best.pt is scored as it is."
    config = small(tmp_path / "run", ema=0.6)
    run = train(config)
    content = read_checkpoint(run.folder / "best.pt")
    seen = []

    class Watch(Detection):
        def loss(self, model, batch, phase):
            seen.append({k: v.clone() for k, v in model.state_dict().items()})
            return super().loss(model, batch, phase)

    train(config.model_copy(update={"output_dir": str(tmp_path / "again")}), Watch(config))
    name, count = "encoder_0.0.bn1.running_var", "encoder_0.0.bn1.num_batches_tracked"
    for key in ("final.weight", name):
        want = seen[0][key]
        for t in range(1, len(seen)):  # before each step but the first
            decay = min(0.6, (1 + t) / (10 + t))
            want = decay * want + (1 - decay) * seen[t][key]
        torch.testing.assert_close(content["model"][key], want)
    assert content["model"][count] == seen[-1][count] == 7
    assert not same(content["model"], content["trained"])
    scored = evaluate(config.model_copy(update={"weight_path": str(run.folder)})).scores
    assert scored.as_dict() == run.scores["scores"]


def test_a_cosine_ends_with_its_run(tmp_path):
    "More epochs would be another schedule; another number of them is another run."
    config = small(tmp_path / "run")
    train(config)
    line = r"epochs 2 -> 3 with schedule=cosine, which ends where its run ends"
    with pytest.raises(UserError, match=line):
        train(config.model_copy(update={"epochs": 3}))
    assert run_name(config) != run_name(config.model_copy(update={"epochs": 3}))


def test_another_data_set_is_one_short_line(tmp_path):
    "Not the digests of all its images."
    first, second = (make_dataset(tmp_path / n, train=k) for n, k in (("a", 8), ("b", 9)))
    small = {"base_size": 32, "crop_size": 32, "epochs": 1, "device": "cpu"}
    place = {"output_dir": str(tmp_path / "run")}
    train(configure({**small, **place, "dataset_dir": str(first)}))
    with pytest.raises(UserError, match="holds another run") as error:
        train(configure({**small, **place, "dataset_dir": str(second)}))
    assert len(str(error.value).replace(str(tmp_path), "")) < 300


def test_settings_of_the_start_warn_with_given_weights_and_other_networks(monkeypatch):
    "The weights have their own start; the network may have no such heads."
    with pytest.warns(UserWarning, match="head_bias is not used with a weight_path"):
        configure({"weight_path": "pretrained", "head_bias": 0.0})
    monkeypatch.setitem(NETWORKS, "thin", torch.nn.Identity)
    with pytest.warns(UserWarning, match="join_rate is not used with network=thin, unless"):
        configure({"network": "thin", "join_rate": 0.1})
    task = Detection(Config(scenes=8, base_size=64))
    assert "crops of 128 pixels are black beyond 64" in task.about(task.splits(), None)["data"]


def test_sides_are_rounded_as_the_official_transform_rounds_them():
    "300 x 138 / 400 is 103.5 and becomes 104; the rounded ratio would lose the half."
    mask = np.zeros((300, 400), np.uint8)
    for long in range(128, 513):
        want = (int(300 * long / 400 + 0.5), long)
        assert _placement(mask, AugmentParams(False, long, 0.0, 0.0, 0.0), 256)[:2] == want


def test_images_that_training_enlarges_are_named(tmp_path):
    "Prediction does not enlarge them, so the targets would have another size."
    folder = str(make_dataset(tmp_path / "data"))
    for side, said in (
        (256, "enlarged to 256, as predict does not: use a smaller --base-size"),
        (32, ""),
    ):
        task = Detection(Config(dataset_dir=folder, base_size=side, crop_size=32))
        assert task.about(task.splits(), None)["data"].partition("; ")[2] == said


def test_an_automatic_warm_up_does_not_change_with_the_length_of_a_constant_run():
    "A longer one is the same run continued."
    rates = [
        [task.rate(step, per_epoch=100) for step in range(100)]
        for task in (Detection(Config(schedule="constant", epochs=n)) for n in (1, 2, 20))
    ]
    assert rates[0] == rates[1] == rates[2] and rates[0][0] < rates[0][50] < rates[0][99]


@pytest.mark.parametrize(
    ("run", "epochs"),
    [
        ("nuaa-sirst-paper", [2]),
        ("nudt-sirst-paper-60/seed2", [4]),  # 4% in the warm-up, then 98% to the end
        ("nuaa-sirst-paper-60/seed0", [4]),
        ("nuaa-sirst-remedy-bias/seed1", []),
        ("nuaa-sirst-remedy-bias/seed2", [19]),  # and has left it five epochs later
        ("nuaa-sirst-steady/seed0", []),
    ],
)
def test_a_collapse_is_reported_in_its_epoch(run, epochs):
    "The kept logs, epoch by epoch, as a run sees them."
    folder = TOP / "results" / run
    task = Detection(settings_from(json.loads((folder / "config.json").read_text())))
    history = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    scored = [i for i, entry in enumerate(history) if "scores" in entry]
    assert [history[i]["epoch"] for i in scored if task.advice(history[: i + 1])] == epochs


@pytest.mark.parametrize(
    ("changes", "scores", "advice"),
    [
        ({}, {"fa": 9e5}, "covers 90% of the image: try a smaller --lr"),
        ({"preset": "paper"}, {"fa": 0}, "is empty, which the SLS loss may not leave; begin a new"),
        ({}, {"fa": 0, "targets": 0}, ""),
        ({}, {"fa": 8000}, ""),  # it predicts something
    ],
)
def test_the_advice_fits_the_recipe(changes, scores, advice):
    "What helps depends on the loss; a list without targets has nothing to be found."
    before, now = ({"iou": 0.5, "pd": 0.5, "fa": 9, "targets": 3} for _ in range(2))
    now |= {"iou": 0.0, "pd": 0.0} | scores
    said = Detection(Config(**changes)).advice([{"scores": before}, {"scores": now}])
    assert advice in said and bool(advice) == bool(said)
