"""What the studies of chapter 6 and of the slides compute, on answers known by hand."""

import json
import math
import shutil
from dataclasses import asdict

import numpy as np
import pytest
import torch
from torch import nn

from tether_studies import (
    between_classes,
    degenerate_minima,
    find,
    influences,
    lines,
    minimum_norms,
    precision,
    separators,
    vgg_layers,
)
from tether_studies.blocks import BLOCKS, LAYERS, Training, brightened, norm_groups, residual, train, unnormed, vgg
from tether_studies.cases import BARE_HIGH, SLOW_LOW, Case, resisting, split
from tether_studies.lab import Lab
from tether_studies.precision import channels_last, in_bfloat16, usable
from tether_studies.pretrained_starts import GROUPS


def test_angles_are_exact_where_they_are_small():
    e = torch.eye(2).double()
    turned = torch.tensor([math.cos(1e-9), math.sin(1e-9)]).double()
    assert separators.degrees(e[0], 3 * e[1]).item() == pytest.approx(90)
    assert separators.degrees(e[0], -e[0]).item() == pytest.approx(180)
    assert separators.degrees(e[0], turned).item() == pytest.approx(math.degrees(1e-9), rel=1e-6)


def test_the_flow_of_one_point_is_a_logarithm():
    """ẇ = e^{−w} has w = log(t + e^{w₀})."""
    study = separators.Separators(problems=1, points=1, features=1, unseen=1, starts=2, decades=3, stride=1e-3)
    start = torch.tensor([[[0.5, 7.0], [-1.0, 2.0]]]).double()
    found = study.flow(torch.tensor([[[1.0, 0.0]]]).double(), start)
    exact = np.log(np.array(found["times"])[:, None] + np.exp([0.5, -1.0]))
    np.testing.assert_allclose(found["norms"][:, 0], np.abs(exact), atol=2e-3)
    assert found["moved"] == 0
    assert found["angles"].max() == 0
    np.testing.assert_allclose(found["sideways"], 0)
    w = exact[-1, 0]
    assert found["unseen"][-1, 0, 0] == pytest.approx(7 / math.hypot(7, w), abs=1e-3)


def test_the_minimum_with_decay_is_a_fixed_point():
    """One point at 1: e^{−w} = λw."""
    study = separators.Separators(decays=(0.1,), features=1)
    found = study.regularized(torch.ones(1, 1, 1).double(), torch.tensor([[[5.0], [-2.0]]]).double())
    assert found["spread"][0] < 1e-12
    w = 1.7455280027406994  # 0.1 w e^w = 1
    assert math.exp(-w) == pytest.approx(0.1 * w)
    assert found["plain"][0][0] == pytest.approx(math.exp(-w))
    assert found["with decay"][0][0] == pytest.approx(math.exp(-w) + 0.1)


def test_problems_have_step_size_one():
    X, _ = minimum_norms.MinimumNorms(problems=3).drawn(seed=1)
    assert torch.linalg.matrix_norm(X, 2).tolist() == pytest.approx([1, 1, 1])


def test_distances_are_relative_to_the_solution():
    """X = (1, 0), y = 2: w* = (2, 0); w = (2, 3) from (0, 1) has moved by 2 in the null space."""
    X, y = torch.tensor([[[1.0, 0.0]]]).double(), torch.tensor([[[2.0]]]).double()
    w, start = torch.tensor([[[2.0, 3.0]]]).double(), torch.tensor([[[0.0, 1.0]]]).double()
    assert minimum_norms.compared(w, start, X, y, 0.0) == [[1.5], [1.0], [1.0]]


def test_descent_ends_where_decay_balances():
    """(w − 1)² + ½λw² has its minimum at 2/(2 + λ)."""
    net = nn.Linear(1, 1, bias=False).double()
    one = torch.ones(1, 1).double()
    assert degenerate_minima.descend(net, (one, one), 0.5, 50) < 1e-9
    assert net.weight.item() == pytest.approx(0.8)


LINES = np.array(
    [
        [1.0, 3.0, 0.0, 0.0, 0.5],  # a barrier, and an upturn at the end
        [2.0, 1.5, 1.0, 0.5, 0.0],
        [2.0, 2.0, 2.0, 1.9, 0.0],  # a tenth of the drop after 3/4 + 1/19 · 1/4
        [1.0, 0.8, 0.6, 0.4, 0.9],  # an upturn is no barrier
        [1.0, 1.0, 2.0, 2.0, 3.0],  # it never falls
        [1.0, 1.5, 0.5, 0.7, 0.0],  # two rises: the larger counts
    ]
)


def test_lines_are_graded_by_numbers():
    tenths = [0.25 + 2.05 / 3 / 4, 0.1, 0.75 + 0.1 / 1.9 / 4, 0.0125, np.nan, 0.4]
    assert lines.tenth(LINES) == pytest.approx(tenths, nan_ok=True)
    assert lines.rise(LINES).tolist() == [2.0, 0.0, 0.0, 0.0, 0.0, 0.5]
    assert lines.climb(LINES).tolist() == [2.0, 0.0, 0.0, 0.0, 0.0, 0.5]
    assert lines.upturn(LINES) == pytest.approx([0.5, 0.0, 0.0, 0.5, 2.0, 0.0])
    kinds = ["barrier", "monotone", "plateau", "monotone", "plateau", "barrier"]
    assert lines.shapes_of(LINES).tolist() == kinds
    assert lines.shapes_of(np.array([[1.0, np.inf, 0.0]])).tolist() == ["not finite"]
    found = lines.graded({"net: losses": LINES, "accuracy": np.ones(6)})
    assert found["net: shapes"].tolist() == kinds
    assert found["net: barriers"].tolist() == [2.0, 0.0, 0.0, 0.0, 0.0, 0.5]
    assert lines.counted(["a", "b", "a"]) == "2 a, 1 b"
    assert lines.all_are("monotone", kinds[:2])[:2] == ("not held", "1 barrier, 1 monotone")


def test_a_block_with_step_size_zero_stays():
    torch.manual_seed(0)
    net = residual(2, depth=2)
    start = {name: x.clone() for name, x in net.state_dict().items()}
    data = torch.randn(70, 3, 16, 16), torch.randint(10, (70,))
    end = train(net, data, Training(3, rates=(("B2", 0.0),), precision="float32"), seed=1)
    moved = {name for name, _ in net.named_parameters() if not torch.equal(start[name], end[name])}
    assert not any(name.startswith("B2.") for name in moved)
    assert {name.partition(".")[0] for name in moved} == {"conv", *BLOCKS} - {"B2"}


def test_a_block_without_decay_keeps_what_the_loss_does_not_move():
    """With step size 0.1, decay 0.5 and no gradient, weights shrink by 0.95 a step; momentum adds 0.9 of the last."""
    torch.manual_seed(0)
    net = residual(2)
    start = {name: x.clone() for name, x in net.state_dict().items()}
    dark = torch.zeros(8, 3, 16, 16), torch.randint(10, (8,))  # no gradient reaches the first convolution
    end = train(net, dark, Training(1, decay=0.5, decays=(("B1", 0.0),), precision="float32"), seed=1)
    torch.testing.assert_close(end["conv.0.weight"], 0.95 * start["conv.0.weight"])
    torch.testing.assert_close(end["B1.0.body.0.weight"], start["B1.0.body.0.weight"])


def test_bfloat16_is_for_products_alone():
    """Weights stay float32; after a step they differ from those of float32 by no more than bfloat16's rounding does."""
    data, ends = (torch.randn(16, 3, 16, 16), torch.arange(16) % 10), {}
    for which in ("float32", "bfloat16"):
        torch.manual_seed(0)
        net = residual(2)
        ends[which] = train(net, data, Training(1, augment=False, precision=which), seed=1)
    floats = [x for x in ends["bfloat16"].values() if x.is_floating_point()]
    assert {x.dtype for x in floats} == {torch.float32}
    far = max((x - ends["float32"][name]).abs().max().item() for name, x in ends["bfloat16"].items())
    assert 0 < far < 0.05
    with pytest.raises(ValueError, match="precision='half' must be one of 'auto', 'bfloat16', 'float32'"):
        in_bfloat16("half")


@pytest.mark.parametrize(
    ("able", "ends", "expected"),
    [({}, 0, False), ({"avx512_bf16": True}, -4, True), ({"amx_bf16": True}, 0, True), ({"amx_bf16": True}, -4, False)],
)
def test_where_a_product_in_bfloat16_ends_the_process_networks_are_float32(monkeypatch, able, ends, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able, raising=False)
    monkeypatch.setattr(precision, "PRODUCT", f"import os; os.kill(os.getpid(), {-ends})" if ends else "")
    usable.cache_clear()
    try:
        assert in_bfloat16("auto") is expected
    finally:
        usable.cache_clear()


def test_networks_that_torch_breaks_are_left_in_their_order():
    for width, last in ((2, False), (8, True)):
        weight = channels_last(residual(width)).B1[0].body[0].weight
        assert weight.is_contiguous(memory_format=torch.channels_last) is last


def test_without_batchnorm_there_are_biases():
    assert sum(isinstance(x, nn.BatchNorm2d) for x in residual(2).modules()) == 1 + 4 * 2 + 3
    net = unnormed(residual(2))
    assert not any(isinstance(x, nn.BatchNorm2d) for x in net.modules())
    assert all(x.bias is not None for x in net.modules() if isinstance(x, nn.Conv2d))
    assert len(list(net.parameters())) == 2 * (1 + 4 * 2 + 3 + 1)


def test_vgg_is_whole_at_width_64():
    """torchvision's vgg11_bn has 9,225,984 parameters in its convolutions, whose biases BatchNorm makes useless."""
    with torch.device("meta"):
        net = vgg(64)
    convolutions = [x for x in net.modules() if isinstance(x, nn.Conv2d)]
    assert [x.out_channels for x in convolutions] == [64, 128, 256, 256, 512, 512, 512, 512]
    biases = sum(x.out_channels for x in convolutions)
    norms = sum(2 * x.num_features for x in net.modules() if isinstance(x, nn.BatchNorm2d))
    assert sum(x.weight.numel() for x in convolutions) + biases + norms == 9_225_984
    assert [name for name, _ in net.named_children()] == list(LAYERS)
    assert vgg(2, narrowed=("L2", "L9"))(torch.zeros(2, 3, 16, 16)).shape == (2, 10)
    assert vgg(2, narrowed=("L2",)).L2[0].out_channels == 2
    assert vgg(2)(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_the_groups_of_a_block_are_all_of_it():
    net = residual(2)
    groups = norm_groups(net, "B3")
    whole = sorted(name for name in net.state_dict() if name.startswith("B3."))
    assert sorted(name for names in groups.values() for name in names) == whole
    assert all("running" in name or "tracked" in name for name in groups["running statistics"])
    assert all(net.state_dict()[name].dim() == 4 for name in groups["convolutions"])


def test_brightness_multiplies_pixels():
    x = torch.tensor([-2.0, 0.0, 1.9]).view(1, 1, 1, 3).repeat(200, 1, 1, 1)  # pixels 0, 0.5 and 0.975
    pixels = (brightened(x, 0.05, torch.Generator().manual_seed(0)) + 2) / 4
    assert (pixels[..., 0] == 0).all()
    factors = pixels[..., 1] / 0.5
    assert 0.95 <= factors.min() < 0.96
    assert 1.04 < factors.max() <= 1.05
    torch.testing.assert_close(pixels[..., 2], (0.975 * factors).clamp(max=1))


def test_layers_with_barriers_are_told_from_the_others():
    falls, bump = np.linspace(2, 0, 5), np.array([1.0, 3.0, 3.0, 1.0, 0.0])
    base = {"L1: losses": np.stack([falls, falls]), "L2: losses": np.stack([bump, bump])}
    base |= {"L3: losses": np.stack([falls / 2, bump])}
    graded = lines.graded(base)
    assert resisting(graded, ("L1", "L2", "L3")) == ["L2"]
    smooth = lines.graded({f"L{i}: losses": falls[None] / (1 + i) for i in range(3)})
    assert resisting(smooth, ("L2", "L1", "L0")) == ["L1", "L0"]  # no barrier: the highest above their ends
    cases = split(Case(lambda: vgg(2), Training(1), 10), ["L2"], ("L1", "L2", "L3"))
    assert cases[SLOW_LOW].training.rates == (("L1", pytest.approx(0.01)), ("L3", pytest.approx(0.01)))
    assert cases[BARE_HIGH].training.decays == (("L2", 0.0),)


def test_more_runs_that_choose_other_layers_do_not_take_pieces_of_the_first_choice(monkeypatch, tmp_path):
    study = find("table-6.4")
    done = []

    def chosen(base, layers):
        return ["L4", "L6"] if len(base["accuracy"]) == 2 else ["L5", "L6"]

    def piece(self, seed, case):
        done.append(case.chosen)
        return {"net: losses": np.array([[2.0, 1.0]]), "accuracy": 50.0, "distance": 1.0}

    monkeypatch.setattr(vgg_layers, "resisting", chosen)
    monkeypatch.setattr(study.config, "piece", piece)
    monkeypatch.setattr(study.config, "tabled", lambda self, found: {"standard": {"accuracy": range(len(found) // 4)}})
    for runs, fresh in ((2, 2 * 12), (3, 1 * 4 + 3 * 8)):  # four cases are the same, eight have other layers
        done.clear()
        lab = Lab(study, study.at("quick", runs=runs), tmp_path / str(runs), seed=0)
        if runs == 3:
            shutil.copytree(tmp_path / "2" / "pieces", tmp_path / "3" / "pieces")
            (tmp_path / "3" / "config.json").write_text(json.dumps({"seed": 0, **asdict(lab.config)}))
        lab.open()
        found = study.run(lab.config, lab)
        lab.close()
        assert len(done) == fresh
        assert set(found) == {(name, i) for name, _ in found for i in range(runs)}
    assert set(map(tuple, done)) == {(), ("L5", "L6")}


def test_shapes_that_tell_the_accuracy():
    def judged(a, b):
        found = {"a": {"shapes": np.array(["monotone"] * 2), "accuracy": np.array(a)}}
        return influences.unreliable({**found, "b": {"shapes": np.array(["plateau"] * 2), "accuracy": np.array(b)}})[1]

    assert judged([1.0, 2.0], [3.0, 4.0])[0] == "not held"
    assert judged([1.0, 3.5], [3.0, 4.0])[0] == "held"


def test_fifteen_ways_with_every_digit_on_three():
    ends = [digit for way in between_classes.WAYS for digit in way]
    assert len(set(between_classes.WAYS)) == 15
    assert all(ends.count(digit) == 3 for digit in range(10))


def test_types_of_images_with_people():
    """Two networks, four images: they agree on the first two; people agree on the first and the last."""
    said = np.array([[0, 1, 2, 3], [0, 1, 5, 4]])
    piece = {"probabilities": np.eye(10)[said][:, None], "steps": np.ones((2, 1)), "accuracies": np.ones((2, 1))}
    results = {"MLPs": {**piece, "labels": np.array([[[1, 1, 1]], [[1, 2, 1]]]), "truth": np.array([1, 1, 1])}}
    one = between_classes.BetweenClasses().verdict(results, ["MLPs"], 0, people=[[0, 1, 2, 3], [0, 2, 3, 3]])
    assert (one.between.type_a, one.between.type_b, one.between.type_c) == (0.25, 0.5, 0.25)
    assert (one.test.error.mean, one.test.group_error) == pytest.approx((1 / 6, 1 / 3))


def test_networks_are_compared_at_targets_that_all_reached():
    """Two groups of each kind, three targets: one perceptron misses the last one, so the second is the highest."""
    study = between_classes.BetweenClasses(targets=(1.0, 2.0, 3.0), groups=2)
    rng = np.random.default_rng(0)

    def piece(count: int, missed: int = 0) -> dict:
        steps = np.ones((count, 3))
        steps[0, 3 - missed :] = -1
        labels, chances = np.ones((count, 3, 2), dtype=int), rng.dirichlet(np.ones(10), (count, 3, 5))
        said = {"labels": labels, "truth": np.ones(2, dtype=int), "probabilities": chances}
        return said | {"steps": steps, "accuracies": np.ones((count, 3))}

    results = {f"{kind}{i + 1}": piece(1) for kind in between_classes.KINDS for i in range(3)}
    results |= {f"{kind}s, group {i + 1}": piece(2) for kind in ("MLP", "CNN") for i in range(2)}
    results["MLPs, group 2"] = piece(2, missed=1)
    found = study.verdicts(results)
    assert [one is None for one in found["MLPs, group 2"]] == [False, False, True]
    assert study.common(found) == [0, 1]
    assert all("nan" not in measured for measured, _ in study.claims(results))
    results["ViT2"] = piece(1, missed=3)  # then there are no nine at any target
    assert {one.verdict for _, one in study.claims(results)} == {"not decided"}


def test_a_network_judges_when_it_is_near_a_target(monkeypatch):
    """Accuracies of 20 images are multiples of 5 %: within 4 points of 10 and 40 are 10 and 40 alone.

    Some networks jump over a target; with the images of this seed none does.
    """
    x, y = torch.rand(20, 1, 28, 28, generator=torch.Generator().manual_seed(3)), torch.arange(20) % 10
    monkeypatch.setattr(between_classes, "digits", lambda train, count: (x, y))
    study = between_classes.BetweenClasses(targets=(10.0, 40.0, 300.0), within=4.0, hidden=20, patience=60, every=1)
    found = study.judged("MLP", 0, 2, 0, x[:3])
    assert found["accuracies"][:, 1].round().tolist() == [40, 40]
    assert found["steps"][:, 2].tolist() == [-1, -1]
    assert found["probabilities"][:, 2].isnan().all()
    assert found["probabilities"][:, 1].sum(-1) == pytest.approx(torch.ones(2, 3))


def test_blocks_of_mobilenet_are_all_its_layers_but_the_first():
    assert [i for group in GROUPS.values() for i in group] == list(range(1, 19))


@pytest.mark.parametrize(("scratch", "verdict"), [(12.0, "not decided"), (40.0, "held"), (25.0, "not held")])
def test_nothing_is_below_a_network_that_has_learnt_nothing(scratch, verdict):
    """With block 1 reset 30 % are right."""
    config = find("fig-6.4").at("default", blocks=("B1",))
    right = dict(zip(config.names(), (scratch, 60.0, 30.0), strict=True))

    def piece(name, i):
        line = np.linspace(2.0, 1.0, 5)[None]
        one = {"net: losses": line, "accuracy": right[name] + i / 10 * (1 + (name != "scratch")), "distance": 1.0}
        return one | {"pre-trained, to a random start: losses": line}

    results = {(name, i): piece(name, i) for name in config.names() for i in range(config.runs)}
    assert [one.verdict for _, one in config.claims(results)][2] == verdict
