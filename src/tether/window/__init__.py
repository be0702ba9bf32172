"""The window of `tether explore`: a page that shows the dynamics of small networks while they are trained.

`setting.py` says what can be chosen, and checks it. `problems.py` and `dynamics.py` build data, networks and optimizers
from a setting. `trainer.py` does what a page asks for and trains by `runner.py`, in a process of `worker.py`.
`session.py` connects a page with that process and has its snapshots painted by `painter.py`. `script.py` writes the
program that does the same. `server.py` and `notebook.py` are two ways to show the page.
"""
