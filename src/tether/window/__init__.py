"""The window of `tether explore`: a page that shows the dynamics of small networks while this process trains them.

`setting.py` says what can be chosen, and checks it. `problems.py` and `dynamics.py` build data, networks and optimizers
from a setting. `session.py` does what a page asks for: one thread trains by `runner.py`, another gets the pictures of
it by `gallery.py`. `painter.py` makes them, mostly in the process of `studio.py`. `script.py` writes the program that
does the same. `server.py` and `notebook.py` are two ways to show the page.
"""
