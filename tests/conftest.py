import atexit
import os
import re
import shutil
import signal
import sys
import tempfile
from importlib.metadata import entry_points
from pathlib import Path

import torch

from tether_studies.precision import usable

collect_ignore_glob = ["clients/*_cases.py"]  # they import clients, in processes of their own

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a suite in the background; tests of Ctrl-C want it to work
    signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # many small tensors: a second thread only adds noise to the clock
if not usable():  # before torch's first product: where AMX ends the process, the tests of bfloat16 go without it
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")


def as_installed() -> None:
    """Let the commands of this checkout be found, if the installed metadata do not name them as its pyproject does."""
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    section = text.partition('[project.entry-points."tether.commands"]')[2].partition("\n[")[0]
    wanted = dict(re.findall(r'^(\S+) = "(.*)"$', section, re.MULTILINE))
    if {point.name: point.value for point in entry_points(group="tether.commands")} == wanted:
        return
    folder = Path(tempfile.mkdtemp(prefix="tether-metadata-")) / "tether-0.dist-info"
    atexit.register(shutil.rmtree, folder.parent, ignore_errors=True)
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: tether\nVersion: 0\n")
    lines = [f"{name} = {value}" for name, value in wanted.items()]
    (folder / "entry_points.txt").write_text("\n".join(["[tether.commands]", *lines, ""]))
    sys.path.insert(0, str(folder.parent))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder.parent), *filter(None, [os.environ.get("PYTHONPATH")])])


as_installed()
