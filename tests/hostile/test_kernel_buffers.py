"""What is handed to the compiled kernel: tables that agree with the C, buffers that are refused or taken by torch."""

import re
from pathlib import Path

import pytest

from tether import build, native

SOURCE = Path(native.__file__).parent
needs_kernel = pytest.mark.skipif(native.library() is None, reason="no C compiler")


def letter(parameter):
    return "a" if "*" in parameter or "[" in parameter else "d" if "double" in parameter else "n"


def test_the_table_of_kernels_is_that_of_the_c_files():
    text = "".join((SOURCE / name).read_text(encoding="utf-8") for name in build.SOURCES)
    found = {}
    for name, arguments in re.findall(r"^int64_t (?:NAME\()?(\w+)\)?\(([^)]*)\) \{", text, flags=re.M):
        found[name] = "".join(letter(parameter) for parameter in arguments.split(","))
    assert found.pop("shuffle") == "nnaaa"
    assert found == {name: types.replace(" ", "") for name, types in native.KERNELS.items()}


@needs_kernel
def test_what_python_and_c_share_is_compared_at_load(monkeypatch):
    monkeypatch.setattr(native, "CHUNK", 4096)
    with pytest.warns(UserWarning, match=r"the library says .*2048.*native.py .*4096"):
        assert "4096" in native._build_once.__wrapped__()
