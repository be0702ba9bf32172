"""Fields that fit a word, for tests that run many words with one set of fields."""

from __future__ import annotations

from typing import Any

from tether.letters import LETTERS

SYMBOLS = {"temperature": "τ", "friction": "γ", "noise": "σ", "coupling": "ε"}


def used(word: str, **fields: Any) -> dict[str, Any]:
    """The fields without those that no letter of the word uses: they would have no effect, and draw a warning."""
    needs = {symbol for letter in word for symbol in LETTERS[letter].needs}
    return {name: value for name, value in fields.items() if SYMBOLS.get(name, "h") in {*needs, "h"}}
