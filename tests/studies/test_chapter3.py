"""What the studies of chapter 3 compute, on answers known by hand."""

import numpy as np
import pytest
import torch

import tether
from tether_studies import endgames, find, four_turns, spirals, trigonometric, weights
from tether_studies.bounded_weights import CURVATURE
from tether_studies.experiment import recipe
from tether_studies.lab import Lab
from tether_studies.planar import Task, learn, on_grid, outputs, scores, starts

TASK = Task("spiral", {"turns": 4.0}, nodes=7, train=40, test=30, batch=10)
SGD = recipe("sgd", lr=0.1)


def test_the_logits_are_the_networks():
    nets = tether.Replicas(TASK.network, 35)  # more than are taken at a time
    x = TASK.sets(35, seed=3)[2]
    torch.testing.assert_close(outputs(nets, x), nets(x, each=True))


def test_loss_and_accuracy_of_a_net_that_says_x():
    nets = tether.Replicas(Task(nodes=1).network, 1)
    with torch.no_grad():
        for p, value in zip(nets.parameters(), ([1.0, 0.0], [0.0], [1.0], [-1.0]), strict=True):
            p.copy_(torch.tensor(value).view_as(p))  # relu(x) − 1
    x = torch.tensor([[[3.0, 9.0], [0.5, 9.0], [-5.0, 9.0]]])  # logits 2, −0.5, −1
    found = scores(nets, x, torch.tensor([[[1.0], [1.0], [0.0]]]))
    assert found["accuracy"].item() == pytest.approx(200 / 3)
    assert found["loss"].item() == pytest.approx(
        (np.log1p(np.exp(-2)) + np.log1p(np.exp(0.5)) + np.log1p(np.exp(-1))) / 3
    )
    field = on_grid(lambda x: nets[0](x).sigmoid(), (0.0, 4.0, -1.0, 1.0), size=5).float()
    torch.testing.assert_close(field[2], torch.sigmoid(torch.arange(5.0) - 1), atol=1e-3, rtol=0)
    assert torch.equal(field[0], field[4])  # it does not see y


def test_every_cell_has_the_same_starts_and_data():
    nets = tether.Replicas(TASK.network, 2, seed=5)
    many = starts(TASK, 2, 5, cells=3)
    for p, start in zip(many.parameters(), nets.parameters(), strict=True):
        assert torch.equal(p[4:6], start)
    # cells that move as slowly as this are where they began, and equal
    found = learn(TASK, recipe("sgd", lr=torch.full((6,), 1e-9)), 2, 2, 5, cells=3)
    assert found["accuracy"].shape == (1, 3, 2)
    assert found["accuracy"][0, 0].tolist() == found["accuracy"][0, 2].tolist()
    x_test, y_test = TASK.sets(2, 5)[2:]
    torch.testing.assert_close(found["loss"][0, 1], scores(nets, x_test, y_test)["loss"])


def test_a_cell_with_a_step_size_of_its_own_moves_as_alone():
    alone = learn(TASK, recipe("sgd", lr=0.3), 25, 2, 5)["loss"][-1, 0]
    cells = learn(TASK, recipe("sgd", lr=torch.tensor([0.3, 0.3, 0.1, 0.1])), 25, 2, 5, cells=2)["loss"][-1]
    torch.testing.assert_close(cells[0], alone)
    assert not torch.allclose(cells[1], alone)


def test_records_at_chosen_steps_and_evenly():
    assert learn(TASK, SGD, 60, 2, 0, records=(20, 40, 60))["steps"].tolist() == [20, 40, 60]
    assert learn(TASK, SGD, 60, 2, 0, records=(10, 60))["steps"].tolist() == [10, 60]
    assert learn(TASK, SGD, 60, 2, 0, records=4)["steps"].tolist() == [15, 30, 45, 60]


def test_a_piece_goes_on_from_its_checkpoint(tmp_path):
    adlala = recipe("adlala", lr=0.1)
    whole = learn(TASK, adlala, 60, 2, 0, records=6)
    learn(TASK, adlala, 30, 2, 0, records=3, checkpoint=tmp_path / "half")
    rest = learn(TASK, adlala, 60, 2, 0, records=6, checkpoint=tmp_path / "half")
    assert rest["steps"].tolist() == [10, 20, 30, 40, 50, 60]
    assert torch.equal(rest["loss"], whole["loss"])


def test_the_portrait_is_that_of_the_median_run():
    found = learn(TASK, SGD, 10, 3, 0, portraits=True)
    assert found["median"].item() == found["accuracy"][-1, 0].median()
    assert found["classifier"].shape == (1, 160, 160)


def test_the_gaussian_start():
    net = Task(nodes=20_000, spread=0.01).network()
    assert net[0].weight.std().item() == pytest.approx(0.01, rel=0.02)
    assert not net[0].bias.any()


def test_time_to_an_accuracy_and_runs_that_never_have_it():
    found = {"steps": np.array([10, 20, 30]), "accuracy": np.array([[[50, 50, 95]], [[91, 60, 60]], [[80, 70, 99]]])}
    assert trigonometric.first_time(found).tolist() == [20, 30, 10]
    assert trigonometric.never(found) == 1


def test_rise_since_the_mean_was_lowest():
    loss = np.array([[[0.7, 0.9]], [[0.2, 0.4]], [[0.1, 0.6]], [[0.5, 0.7]]])  # means 0.8, 0.3, 0.35, 0.6
    assert spirals.rise({"loss": loss}) == pytest.approx([0.3, 0.3])


def test_the_mean_of_the_squared_deviations_is_the_variance():
    x = np.array([80.0, 90.0, 97.0, 99.0])
    squares = spirals.deviations({"accuracy": x[None, None]})
    assert squares.mean() == pytest.approx(x.var(ddof=1))


def test_small_parameters_are_those_of_the_hidden_layer():
    found = {"weights 1": np.array([[[0.05, -2.0], [0.5, 0.2]]]), "biases": np.array([[[-0.01, 0.3], [1.0, 1.0]]])}
    assert weights.small(found).tolist() == [50.0, 0.0]


def test_the_split_shuffles_and_scales(monkeypatch):
    x = torch.arange(100).view(50, 2)
    monkeypatch.setattr(tether.data, "krkopt", lambda: (x, torch.arange(50)))
    endgames.split.cache_clear()
    (x_train, y_train), (x_test, y_test) = endgames.split("chess", 1000, 7)
    endgames.split.cache_clear()
    assert (len(x_train), len(x_test)) == (40, 10)
    labels = torch.cat((y_train, y_test))
    assert labels.sort().values.tolist() == list(range(50))
    assert labels.tolist() != list(range(50))
    both = torch.cat((x_train, x_test))
    torch.testing.assert_close(both.mean(0), torch.zeros(2), atol=1e-6, rtol=0)
    torch.testing.assert_close(both.std(0), torch.ones(2))
    assert torch.equal(both[:, 0].argsort(), labels.argsort())  # rows and labels stay together


def test_more_runs_of_the_endgames_keep_those_that_were_done(monkeypatch, tmp_path):
    """Later runs are other pieces, with starts and minibatches of their own."""
    x, y = torch.randn(60, 4, generator=torch.Generator().manual_seed(1)), torch.arange(60) % 10
    for name in ("krkopt", "poker_hand"):
        monkeypatch.setattr(tether.data, name, lambda: (x, y))
    monkeypatch.setattr(endgames, "AT_ONCE", {"chess": 2, "poker": 2})
    endgames.split.cache_clear()
    found, seeds, made = {}, [], tether.Replicas
    monkeypatch.setattr(tether, "Replicas", lambda *args, seed: seeds.append(seed) or made(*args, seed=seed))
    for runs in (2, 3):
        config = find("fig-3.18").at("quick", chess_runs=runs, poker_runs=2, chess_batch=10, poker_batch=10)
        lab = Lab(find("fig-3.18"), config, tmp_path / "fig-3.18" / f"{runs}", 0)
        lab.open()
        found[runs] = config.run(lab)
        lab.close()
    endgames.split.cache_clear()
    assert {path.stem for path in (tmp_path / "fig-3.18" / "3" / "pieces").glob("chess, Adam*")} == {
        "chess, Adam",
        "chess, Adam, runs from 2",
    }
    for name, one in found[2].items():
        more = found[3][name]
        assert one["loss"].shape[1] == 2
        assert more["loss"].shape[1] == (3 if name[0] == "chess" else 2)
        np.testing.assert_array_equal(more["loss"][:, :2], one["loss"])
    third = [found[3]["chess", method]["loss"][0] for method in endgames.GAMES["chess"]]
    assert all(len(set(losses)) == 3 for losses in third)
    first, last = seeds[:6], seeds[6:]  # of chess and poker; then of chess, its later run and poker, three methods each
    assert [len(set(some)) for some in (first[:3], first[3:], last[:3], last[3:6], last[6:])] == [1] * 5
    assert len({*first[:3], *first[3:], *last[3:6]}) == 3
    assert [*last[:3], *last[6:]] == first


def test_the_mean_classifier_is_the_mean_of_probabilities():
    nets = tether.Replicas(TASK.network, 3, seed=1)
    points = torch.randn(8, 2)
    kept = list(four_turns.weights(0, nets).values())
    by_hand = torch.stack([nets[i](points).sigmoid() for i in range(3)]).mean(0)
    torch.testing.assert_close(four_turns.mean_classifier(kept, points), by_hand)


def test_further_runs_stand_behind_the_others_and_pair_with_their_own():
    study = find("fig-4.1")
    config = study.at("default", temperatures=(5e-4,), further=3)
    pieces = {"C-SGD": [7.0, 8.0], "C-SGLD": [1.0, 2.0], "τ = 0.0005": [5.0, 6.0]}
    pieces |= {"C-SGLD, further runs": [3.0], "τ = 0.0005, further runs": [7.0]}
    pieces |= {"C-SGLD, further runs, runs from 100": [4.0, 9.0], "τ = 0.0005, further runs, runs from 100": [8.0, 2.0]}
    found = config.at_temperatures({name: {"curvature mean": np.array(x)} for name, x in pieces.items()}, CURVATURE)
    assert {name: x.tolist() for name, x in found.items()} == {
        "τ = 0": [7.0, 8.0],
        "τ = 5e-05": [1.0, 2.0, 3.0, 4.0, 9.0],
        "τ = 0.0005": [5.0, 6.0, 7.0, 8.0, 2.0],
    }
