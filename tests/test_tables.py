"""Tables, from small files in the original formats and from the real ones."""

import gzip
import os

import pytest
import torch

from tether.data import krkopt, poker_hand


def test_endgames(tmp_path):
    (tmp_path / "krkopt").mkdir()
    (tmp_path / "krkopt" / "krkopt.data").write_text("a,1,b,3,c,2,draw\nc,1,c,2,a,1,zero\nd,4,h,8,f,5,sixteen\n")
    positions, depths = krkopt(tmp_path)
    assert positions.tolist() == [[1, 1, 2, 3, 3, 2], [3, 1, 3, 2, 1, 1], [4, 4, 8, 8, 6, 5]]
    assert depths.tolist() == [0, 1, 17]


def test_hands_packed_and_with_the_line_ends_of_the_original(tmp_path):
    (tmp_path / "poker-hand").mkdir()
    rows = b"1,10,1,11,1,13,1,12,1,1,9\r\n4,9,2,2,2,4,2,7,2,3,0\r\n"
    (tmp_path / "poker-hand" / "poker-hand-training-true.data.gz").write_bytes(gzip.compress(rows))
    cards, worth = poker_hand(tmp_path)
    assert cards.tolist() == [[1, 10, 1, 11, 1, 13, 1, 12, 1, 1], [4, 9, 2, 2, 2, 4, 2, 7, 2, 3]]
    assert worth.tolist() == [9, 0]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("a,1,b,3,c,2,draw\na,1,b,3,c,2\n", "row 2 has 6 fields where this set has 7"),
        ("a,1,b,3,c,2,seventeen\n", "row 1: 'a,1,b,3,c,2,seventeen' is no endgame"),
        ("a,1,i,3,c,2,draw\n", "row 1: 'a,1,i,3,c,2,draw' is no endgame"),
        ("a,1,3,b,c,2,draw\n", "row 1: 'a,1,3,b,c,2,draw' is no endgame"),
    ],
)
def test_rows_that_are_no_endgames_are_named(content, says, tmp_path):
    (tmp_path / "krkopt").mkdir()
    (tmp_path / "krkopt" / "krkopt.data").write_text(content)
    with pytest.raises(ValueError, match=says):
        krkopt(tmp_path)


def test_a_missing_file_is_named_with_where_to_get_it(tmp_path):
    (tmp_path / "poker-hand").mkdir()
    with pytest.raises(FileNotFoundError, match=r"poker-hand-training-true.data is missing.*archive.ics.uci.edu"):
        poker_hand(tmp_path)


@pytest.mark.skipif("TETHER_DATA" not in os.environ, reason="the real sets lie elsewhere")
def test_the_real_sets_have_the_published_counts():
    positions, depths = krkopt()
    assert (positions.amin(), positions.amax()) == (1, 8)
    published = [2796, 27, 78, 246, 81, 198, 471, 592, 683, 1433, 1712, 1985, 2854, 3597, 4194, 4553, 2166, 390]
    assert torch.bincount(depths).tolist() == published
    cards, worth = poker_hand()
    assert cards.view(-1, 5, 2).amax((0, 1)).tolist() == [4, 13]
    assert torch.bincount(worth).tolist() == [12493, 10599, 1206, 513, 93, 54, 36, 6, 5, 5]
