"""The window as a widget: the same session, by the messages of a notebook."""

import time

import pytest

import tether
from tether.window.setting import SettingError

pytest.importorskip("anywidget", reason="pip install 'tether[notebook]'")


def test_the_widget_trains_and_sends_frames_with_buffers():
    widget = tether.explore({"replicas": 1, "hidden": [3], "dynamics": [{"method": "sgd"}]})
    sent = []
    widget.send = lambda content, buffers=None: sent.append((content, buffers))
    try:
        widget._receive(widget, {"type": "hello"}, None)
        widget._receive(widget, {"type": "set", "setting": widget.first}, None)
        deadline = time.monotonic() + 60
        while not any(content["type"] == "frame" for content, _ in sent) and time.monotonic() < deadline:
            time.sleep(0.02)
        kinds = [content["type"] for content, _ in sent]
        assert kinds[:2] == ["facts", "setting"]
        frame, buffers = next(pair for pair in sent if pair[0]["type"] == "frame")
        assert frame["step"] == 0
        assert len(buffers[0]) > 1000
    finally:
        widget.close()


def test_a_wrong_setting_is_refused_before_anything_is_shown():
    with pytest.raises(SettingError, match="replicas=0 must be a whole number from 1 to 50"):
        tether.explore({"replicas": 0})
