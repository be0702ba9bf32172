"""Agreement of models and people on a table worked by hand; images between two codes."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tether import measure

# image     0  1  2  3  4  5  6  7
MODELS = [
    [1, 2, 3, 4, 5, 6, 7, 8],
    [1, 2, 3, 4, 5, 9, 7, 0],
    [1, 2, 3, 9, 5, 6, 7, 9],
]
PEOPLE = [
    [1, 2, 7, 4, 3, 6, 7, 8],
    [1, 2, 3, 4, 3, 9, 7, 8],
    [1, 2, 3, 4, 3, 1, 7, 8],
    [1, 2, 3, 4, 3, 1, 7, 8],
]
# models     =  =  =  ≠  =  ≠  =  ≠
# people     =  =  ≠  =  =  ≠  =  =
TYPES = ["B", "B", "C", "A", "contradiction", "B", "B", "A"]


def test_the_types_and_errors_of_a_table_by_hand():
    found = measure.agreement(MODELS, PEOPLE)
    assert found.type == TYPES
    assert (found.type_a, found.type_b, found.type_c, found.contradiction) == (2 / 8, 4 / 8, 1 / 8, 1 / 8)
    # People agree but on images 2 and 5. Model 0 errs on image 4, model 1 on 4 and 7, model 2 on 3, 4 and 7.
    assert found.model_errors.tolist() == [1 / 8, 2 / 8, 3 / 8]
    assert found.group_error == 3 / 8
    # The models' votes are 4 on image 3, 5 on image 4, and on image 7 a tie of 8, 0 and 9 that goes to 0.
    assert found.models.vote.tolist() == [1, 2, 3, 4, 5, 6, 7, 0]
    assert found.vote_error == 2 / 8
    assert found.error == (2 / 8, pytest.approx(math.sqrt(2 / 3) / 8))


def test_disagreements_and_certainties_by_hand():
    found = measure.agreement(MODELS, PEOPLE)
    assert found.models.disagreement == 3 / 8
    assert found.humans.disagreement == 2 / 8
    # Models 0 and 1 differ on images 5 and 7; 0 and 2 on 3 and 7; 1 and 2 on 3, 5 and 7.
    assert (found.models.pairwise * 8).tolist() == [[0, 2, 2], [2, 0, 3], [2, 3, 0]]
    assert found.disagreement == (pytest.approx(7 / 24), pytest.approx(math.sqrt(2) / 24))
    # People: 0 differs from all others on 2; on image 5 all pairs differ but one.
    assert sorted(found.humans.pairs * 8) == [0, 1, 1, 2, 2, 2]
    assert found.human_disagreement.mean == pytest.approx(8 / 48)
    assert found.models.certainty.tolist() == pytest.approx([1, 1, 1, 2 / 3, 1, 2 / 3, 1, 1 / 3])
    assert found.humans.certainty.tolist() == [1, 1, 3 / 4, 1, 1, 2 / 4, 1, 1]
    assert found.certainty == {
        1.0: (6, pytest.approx((1 + 1 + 2 / 3 + 1 + 1 + 1 / 3) / 6)),
        0.75: (1, 1.0),
        0.5: (1, pytest.approx(2 / 3)),
    }
    assert str(found) == (
        "3 models disagree on 37.5 % of 8 images; with 4 people type A 25 %, B 50 %, C 12.5 %, 37.5 % misclassified"
    )


def probabilities(labels, largest):
    """Ten classes; the rest is spread evenly."""
    labels, largest = torch.tensor(labels), torch.tensor(largest, dtype=torch.float64)
    table = ((1 - largest) / 9)[..., None].repeat(1, 1, 10)
    return table.scatter(2, labels[..., None], largest[..., None])


def test_the_maximum_softmax_by_type():
    largest = [[0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2]] * 3
    largest[1] = [x + 0.1 for x in largest[0]]
    found = measure.agreement(torch.tensor(MODELS), np.array(PEOPLE), probabilities(MODELS, largest)).softmax
    assert found["A"].mean == pytest.approx((0.6 + 0.7 + 0.6 + 0.2 + 0.3 + 0.2) / 6)
    assert found["A"].std == pytest.approx(np.std([0.6, 0.7, 0.6, 0.2, 0.3, 0.2]))
    assert found["B, disagree"].mean == pytest.approx((0.4 + 0.5 + 0.4) / 3)
    assert found["B, agree"].mean == pytest.approx((0.9 + 0.8 + 0.3) / 3 + 0.1 / 3)
    assert found["C"].mean == pytest.approx((0.7 + 0.8 + 0.7) / 3)
    assert found["contradiction"].mean == pytest.approx(0.5 + 0.1 / 3)
    with pytest.raises(ValueError, match="needs both human_labels and probabilities"):
        _ = measure.agreement(MODELS, PEOPLE).softmax


def test_without_people_there_are_no_types():
    found = measure.agreement(MODELS)
    assert all(map(math.isnan, (found.type_a, found.type_b, found.type_c, found.group_error)))
    assert found.models.disagreement == 3 / 8
    assert found.humans is None
    assert math.isnan(found.human_disagreement.mean)
    with pytest.raises(ValueError, match="needs human_labels"):
        _ = found.certainty


@pytest.mark.parametrize("missing", [-1, math.nan])
def test_missing_votes_are_no_disagreement(missing):
    """Without its third model image 3 is unanimous and right; model 2 is judged by 7 images."""
    models = [list(map(float, row)) for row in MODELS]
    models[2][3] = missing
    people = [list(map(float, row)) for row in PEOPLE]
    people[0][2] = missing
    found = measure.agreement(models, people)
    assert found.type == ["B", "B", "B", "B", "contradiction", "B", "B", "A"]
    assert found.model_errors.tolist() == [1 / 8, 2 / 8, 2 / 7]
    assert found.models.pairwise[0, 2] == 1 / 7
    assert found.models.certainty[3] == 1
    models[0][3] = models[1][3] = missing
    with pytest.raises(ValueError, match="model_labels: nobody has voted on image 3"):
        measure.agreement(models, people)


def test_single_judges_and_judges_without_a_common_image():
    alone = measure.agreement([[1, 2]], [[1, 3]])
    assert (alone.type_b, alone.contradiction, alone.group_error) == (0.5, 0.5, 0.5)
    assert math.isnan(alone.disagreement.mean)
    apart = measure.agreement([[1, -1], [-1, 2]], [[1, 2]])
    assert math.isnan(apart.models.pairwise[0, 1])
    assert apart.type_b == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 2, 3],), r"shape \(3,\): it must have a row for each judge"),
        (([],), "a row for each judge"),
        (([[1, 2], [1]],), "must be a table of integers"),
        (([["a", "b"]],), "must be a table of integers"),
        (([[1, 2]], [[1, 2, 3]]), "2 images in model_labels but 3 in human_labels"),
        (([[0.5, 2]],), "model_labels holds 0.5: labels are integers"),
        (([[1, -2]],), "holds -2"),
        (([[1, math.inf]],), "holds inf"),
        ((MODELS, PEOPLE, torch.ones(3, 8)), r"shape \(3, 8\): it must be \(3, 8\) × classes"),
        ((MODELS, PEOPLE, torch.zeros(3, 8, 10)), "add up to 1 over the classes"),
        ((MODELS, PEOPLE, torch.full((3, 8, 5), 0.2)), "label 9 has no probability"),
        (
            (MODELS, PEOPLE, torch.eye(10)[torch.tensor(MODELS)[[0, 2, 1]]]),
            "model 1 labels image 3 as 4, not its most",
        ),
    ],
)
def test_bad_tables_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        measure.agreement(*arguments)


# Images on the way


def test_codes_lie_on_the_line_or_on_the_great_circle():
    generator = nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3)))
    start, end = torch.tensor([3.0, 0, 0, 0]), torch.tensor([0, 3.0, 0, 0])
    straight = measure.morph(generator, start, end, points=5)
    assert_close(straight.codes, torch.stack([(1 - a) * start + a * end for a in (0, 0.25, 0.5, 0.75, 1)]))
    with torch.no_grad():
        assert_close(straight.images, generator(straight.codes))
    round_ = measure.morph(generator, start, end, points=3, spherical=True)
    assert_close(round_.codes[1], torch.tensor([3.0, 3.0, 0, 0]) / math.sqrt(2))
    assert_close(round_.codes[[0, 2]], torch.stack([start, end]))
    same = measure.morph(generator, start, 2 * start, points=3, spherical=True)
    assert_close(same.codes[1], 1.5 * start)
    assert str(straight) == "5 images of shape (2, 3) on the way between two codes"
    for bad, message in (((start, end[:2]), "start and end must be alike"), ((start, end, 1), "points=1 must be")):
        with pytest.raises(ValueError, match=message):
            measure.morph(generator, *bad)
    with pytest.raises(ValueError, match="opposite codes"):
        measure.morph(generator, start, -start, spherical=True)


def test_results_draw_themselves():
    plt = pytest.importorskip("matplotlib.pyplot")
    generator = nn.Sequential(nn.Linear(4, 12), nn.Unflatten(1, (1, 4, 3)))
    for found in (
        measure.agreement(MODELS, PEOPLE),
        measure.agreement(MODELS),
        measure.morph(generator, torch.zeros(4), torch.ones(4)),
    ):
        ax = plt.subplots()[1]
        assert found.plot(ax) is ax
        assert ax.get_xlabel()
        assert found.plot() is not ax
    plt.close("all")
