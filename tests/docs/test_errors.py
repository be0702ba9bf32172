"""Every message that the page of errors explains is still one of the library."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
errors = pytest.importorskip("made.errors")

PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(.+?)` \| .+ \| .+ \|$", PAGE, re.MULTILINE)


def known(message):
    """Is every piece of the message, between values of the user, in one text of the source?"""
    pieces = [piece.strip() for piece in message.split("…")]
    return any(all(piece in line for piece in pieces) for line in errors.texts().splitlines())


def test_every_message_of_the_page_occurs_in_the_source():
    assert len(ROWS) >= 50
    assert [message for message in ROWS if not known(message)] == []


def test_a_message_that_nobody_raises_is_noticed():
    assert not known("the moon is … made of cheese")


def test_the_list_has_the_messages_of_a_file():
    texts = [text for _, text in errors.messages()["part.py"]]
    assert any("is matched by no part" in text for text in texts)
    assert "### surfaces" in errors.listed("")
