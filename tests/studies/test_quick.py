"""Every study at its quick scale: it runs to its end, judges, draws and can be reported."""

import pytest

from tether_studies import studies
from tether_studies.judges import UNJUDGED
from tether_studies.needs import missing
from tether_studies.report import html, results
from tether_studies.runner import Job, run_one


@pytest.mark.parametrize("name", list(studies()))
def test_quick(name, tmp_path):
    lacking = missing(studies()[name])
    if lacking:
        pytest.skip(lacking[0])
    assert run_one(Job(name, "quick", tmp_path)) == "done: a quick run decides nothing"
    (found,) = results(tmp_path)
    assert found["claims"]
    for claim in found["claims"]:
        assert claim["verdict"] == UNJUDGED
        assert claim["text"]
        assert claim["published"]
        assert claim["measured"]
    assert found["figures"]
    for picture in found["figures"]:
        assert (found["folder"] / picture).read_bytes().startswith(b"\x89PNG")
    page = html([found])
    assert page.count("data:image/png;base64,") == len(found["figures"])
    assert f"tether run {name} --quick" in page
