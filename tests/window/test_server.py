"""The server: for this machine alone, and one session for each page."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from browsing import children, serving

pytest.importorskip("uvicorn", reason="pip install 'tether[explore]'")
connect = pytest.importorskip("websockets.sync.client", reason="pip install 'tether[explore]'").connect


@pytest.fixture(scope="module")
def server():
    with serving() as found:
        yield found


def get(address, **headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=30) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()


def until(page, kind):
    while True:
        got = page.recv(timeout=60)
        if isinstance(got, bytes):
            length = int.from_bytes(got[:4], "little")
            got = got[4 : 4 + length]
        header = json.loads(got)
        if header["type"] == kind:
            return header


def test_the_page_loads_nothing_from_elsewhere(server):
    status, headers, body = get(server[0])
    assert status == 200
    assert "default-src 'none'" in headers["content-security-policy"]
    for name in ("window.js", "window.css"):
        status, _, text = get(server[0] + name)
        assert status == 200
        assert b"http://" not in text.replace(b"http://127", b"")
        assert b"https://" not in text
        assert name.encode() in body


@pytest.mark.parametrize("path", ["nothing.js", "..%2Fserver.py", "%2e%2e/server.py", "/etc/passwd"])
def test_other_files_are_not_served(server, path):
    assert get(server[0] + path)[0] == 404


def test_foreign_hosts_and_origins_are_refused(server):
    port = server[0].rsplit(":", 1)[1].strip("/")
    assert get(server[0], Host="evil.example")[0] == 421
    assert get(server[0], Host=f"evil.example:{port}")[0] == 421
    assert get(server[0], Host=f"localhost:{port}")[0] == 200
    address = f"ws://127.0.0.1:{port}/socket"
    for origin in ("http://evil.example", "https://127.0.0.1:" + port, "null", "http://127.0.0.1:1"):
        with pytest.raises(Exception, match=r"403|4403|rejected"):
            connect(address, origin=origin)
    with connect(address, origin=f"http://127.0.0.1:{port}") as page:
        assert json.loads(page.recv(timeout=30))["type"] == "facts"


def test_it_listens_on_the_loopback_address_alone(server):
    port = int(server[0].rsplit(":", 1)[1].strip("/"))
    own = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), port, socket.AF_INET)} - {"127.0.0.1"}
    for address in own:
        if not address.startswith("127."):
            with pytest.raises(OSError, match=r"refused|unreachable|timed out"):
                socket.create_connection((address, port), timeout=3)


def test_two_pages_have_sessions_of_their_own(server):
    address = server[0].replace("http", "ws") + "socket"
    setting = {"replicas": 1, "hidden": [3], "dynamics": [{"method": "sgd"}]}
    with connect(address) as one, connect(address) as other:
        for page in (one, other):
            until(page, "facts")
            page.send(json.dumps({"type": "set", "setting": setting}))
            until(page, "frame")
        one.send(json.dumps({"type": "run", "steps": 4}))
        one.send(json.dumps({"type": "ack"}))
        while until(one, "frame")["step"] < 4:
            one.send(json.dumps({"type": "ack"}))
        other.send(json.dumps({"type": "ack"}))
        other.send(json.dumps({"type": "view", "replica": 0, "pair": [0, 1], "of": 0}))
        assert until(other, "frame")["step"] == 0
        other.send("no json {")
        assert until(other, "error")


def test_a_port_in_use_and_a_wrong_one_are_refused_at_once(server):
    for port, code in ((server[0].rsplit(":", 1)[1].strip("/"), 1), ("99999", 1), ("x", 2)):
        command = [sys.executable, "-m", "tether", "explore", "--no-browser", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == code
        assert port in done.stderr


def test_ctrl_c_ends_it_and_the_process_that_trains():
    with serving() as (address, process), connect(address.replace("http", "ws") + "socket") as page:
        until(page, "facts")
        page.send(json.dumps({"type": "set", "setting": {"replicas": 1, "hidden": [3]}}))
        page.send(json.dumps({"type": "run"}))
        until(page, "frame")
        (trainer,) = children(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in (0, 130, -2)
        with pytest.raises(ProcessLookupError):
            os.kill(trainer, 0)
