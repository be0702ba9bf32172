"""Labels of people: the file, the tables that come of it, and what is said without one."""

import numpy as np
import pytest
import torch

from tether.measure import agreement
from tether_studies import between_classes, find, image_networks, people
from tether_studies.lab import Lab
from tether_studies.report import results
from tether_studies.runner import Job, folder_of, run_one


def written(path, rows, head=None):
    """A file of labels; the columns run backwards, as a shuffled sheet's may."""
    head = head or [str(i) for i in range(people.IMAGES, 0, -1)]
    lines = [",".join(["person", *head]), *(",".join([name, *map(str, row)]) for name, row in rows.items())]
    path.write_text("\n".join(lines), encoding="utf-8-sig")
    return path


def test_columns_are_found_by_their_numbers_and_an_empty_cell_is_no_vote(tmp_path):
    ones = ["1"] * (people.IMAGES - 1)
    found = people.labels_of(written(tmp_path / "a.csv", {"Ann": [*ones, "7"], "Bob": ["", *ones]}))
    assert found.shape == (2, people.IMAGES)
    assert found[0, 0] == 7
    assert found[0, 1:].tolist() == [1] * (people.IMAGES - 1)
    assert np.isnan(found[1, -1])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda head, rows: head.remove("17"), "image 17 is missing"),
        (lambda head, rows: head.append("166"), "it has other columns"),
        (lambda head, rows: rows.pop("Bob"), "1 people: two or more"),
        (lambda head, rows: rows["Bob"].pop(), "'Bob' has 164 labels for 165 images"),
        (lambda head, rows: rows["Ann"].__setitem__(3, "x"), "'Ann' labels image 4 as 'x'"),
        (lambda head, rows: rows["Ann"].__setitem__(3, "11"), "'Ann' labels image 4 as '11'"),
        (lambda head, rows: [row.__setitem__(8, "") for row in rows.values()], "nobody has a label for image 9"),
    ],
)
def test_a_wrong_file_is_told_what_it_should_be(tmp_path, change, says):
    head = [str(i + 1) for i in range(people.IMAGES)]
    rows = {name: ["1"] * people.IMAGES for name in ("Ann", "Bob")}
    change(head, rows)
    with pytest.raises(ValueError, match=says) as caught:
        people.labels_of(written(tmp_path / "a.csv", rows, head))
    assert "its first line is 'person,1,2," in str(caught.value)


def test_squares_are_coloured_by_who_disagrees():
    models = [[1, 1, 1, 1, 1], [1, 2, 1, 1, 2], [1, 3, 1, 1, 1]]
    humans = [[1, 1, 1, 1, 1], [1, 1, 2, 2, 2], [1, 1, 2, 3, 1]]
    grey, blue, light, dark, white = people.coloured(agreement(models, humans))
    assert grey.tolist() == [0.74] * 3
    assert white.tolist() == [1.0] * 3
    assert blue[2] > blue[0]
    assert light[0] > light[2]
    assert dark.sum() < light.sum()


def judged(said, targets, images):
    """A piece of table-6.5: what networks say of the images, the same at every target."""
    sure = np.full((len(said), len(targets), images, 10), 0.02)
    for i, labels in enumerate(said):
        sure[i, :, np.arange(images), labels] = 0.82
    shape = (len(said), len(targets))
    found = {"probabilities": sure, "labels": np.zeros((*shape, 3), int), "truth": np.zeros(3, int)}
    return found | {"steps": np.ones(shape), "accuracies": np.ones(shape)}


def test_tables_come_of_what_table_6_5_found_and_a_file(tmp_path, monkeypatch):
    """Networks differ on the first 33 images, people on the first 66: none of type A, a fifth of type C."""
    monkeypatch.setattr("tether_studies.runner._lacking", lambda job: "")
    study, images = find("table-6.5"), people.IMAGES
    lab = Lab(study, study.at("quick"), folder_of(Job("table-6.5", "quick", tmp_path)), 0)
    lab.open()
    one, other = np.ones(images, int), np.where(np.arange(images) < 33, 2, 1)
    config = lab.config
    work = {"images": lambda: {"images": np.zeros((images, 1, 28, 28))}}
    for k, name in enumerate(f"{kind}{i}" for kind in between_classes.KINDS for i in (1, 2, 3)):
        work[name] = lambda k=k: judged([other if k == 4 else one], config.targets, images)
    for name in (name for kind in config.kinds for name in config.groups_of(kind)):
        work[name] = lambda: judged([one, other], config.targets, images)
    lab.pieces(work)
    lab.close()
    ann, bob = np.ones(images, int)[::-1], np.where(np.arange(images) < 66, 3, 1)[::-1]
    path = written(tmp_path / "labels.csv", {"Ann": ann, "Bob": bob})
    run_one(Job("table-6.7", "quick", tmp_path, changes={"people": str(path)}))
    (found,) = results(tmp_path)
    said = [claim["measured"] for claim in found["claims"]]
    assert said[0] == "0.0, 0.0 % each, 0.0, 0.0 % together"
    assert said[1].startswith("40.0 % for two people, 4.4, 4.4 %")  # one of nine differs: 8 of 36 pairs, 20 % each
    assert said[2] == "type A 0.0, 0.0 %, type C 20.0, 20.0 %"
    assert [table["caption"][-10:-1] for table in found["tables"]][1:] == ["Table 6.8", "Table 6.9"]
    assert found["tables"][2]["head"][2:] == ["people 100 % sure", "people 50 % sure"]
    assert found["tables"][2]["rows"][0][2:] == ["100.0 ± 0.0", "75.0 ± 0.0"]  # half of the unsure images split 1 : 1
    assert found["figures"] == ["people.png", "types.png"]


def test_without_labels_and_without_networks_the_study_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("tether_studies.runner._lacking", lambda job: "")
    labels = written(tmp_path / "labels.csv", {name: ["1"] * people.IMAGES for name in ("Ann", "Bob")})
    study = people.People
    assert "--set people=FILE" in study().run(None)["missing"]
    lab = Lab(find("table-6.7"), study(people=str(labels)), tmp_path / "table-6.7" / "default", 0)
    assert study(people=str(labels)).run(lab)["missing"] == "table-6.5 has not been run here: tether run table-6.5"


def test_networks_are_those_of_the_thesis():
    kinds = {kind: [type(x).__name__ for x in image_networks.network(kind).modules()] for kind in between_classes.KINDS}
    assert [kinds["CNN"].count(x) for x in ("Conv2d", "BatchNorm2d", "MaxPool2d", "Linear")] == [4, 4, 2, 3]
    net = image_networks.network("CNN", channels=2)
    assert [x.p for x in net.modules() if isinstance(x, torch.nn.Dropout)] == [0.4]
    assert isinstance(net[-2], torch.nn.Dropout)  # between the middle linear layer and the last
    sizes = [x.out_features for x in image_networks.network("MLP").modules() if isinstance(x, torch.nn.Linear)]
    assert sizes == [500, 500, 10]
    blocks = image_networks.network("ViT").blocks
    assert [(x.self_attn.num_heads, x.linear1.out_features) for x in blocks] == [(8, 128)] * 6
    for kind in between_classes.KINDS:
        assert image_networks.network(kind, 10, 2, 7, 16)(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_five_layers_each_make_and_judge_an_image():
    make, judge = image_networks.generator(2), image_networks.discriminator(2)
    images = make(torch.zeros(3, image_networks.CODE))
    assert images.shape == (3, 1, 28, 28)
    assert judge(images).shape == (3,)
    for net in (make, judge):
        assert sum(isinstance(x, torch.nn.Conv2d | torch.nn.ConvTranspose2d) for x in net) == 5
