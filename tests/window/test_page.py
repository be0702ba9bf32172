"""The page in a real browser: every control does what it says."""

import json
import os
import signal
import time
import urllib.parse

import pytest
from browsing import browsing, children, serving

pytest.importorskip("uvicorn", reason="pip install 'tether[explore]'")

SMALL = {
    "problem": {"kind": "blobs", "points": 60, "classes": 2, "noise": 0.3},
    "hidden": [4],
    "activation": "tanh",
    "batch": 10,
    "replicas": 2,
    "seed": 3,
    "dynamics": [
        {"method": "sgd", "fields": {"lr": 0.1}, "label": "one"},
        {"parts": [{"where": "*", "word": "BAOAB"}]},
    ],
}


@pytest.fixture(scope="module")
def address():
    with serving() as (found, _):
        yield found


@pytest.fixture(scope="module")
def browser():
    with browsing() as found:
        yield found


@pytest.fixture
def page(browser, address):
    page = browser.new_page(viewport={"width": 1280, "height": 900}, bypass_csp=True)  # Playwright evaluates strings
    page.set_default_timeout(60_000)
    wrong = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.goto(address + "#" + urllib.parse.quote(json.dumps(SMALL)))
    page.wait_for_function("window.tether.frame !== null")
    yield page
    page.close()
    assert wrong == []


def step(page):
    return page.evaluate("window.tether.frame.step")


def steps(page, count):
    """Make single steps by the button, each seen on the page."""
    for _ in range(count):
        before = step(page)
        page.get_by_role("button", name="Step", exact=True).click()
        page.wait_for_function(f"window.tether.frame.step === {before + 1}")


def test_start_pause_step_reset_and_keys(page):
    steps(page, 2)
    page.get_by_role("button", name="Start").click()
    page.wait_for_function("window.tether.frame.step > 20")
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Start").wait_for()
    time.sleep(0.3)
    rests = step(page)
    time.sleep(0.5)
    assert step(page) == rests
    page.keyboard.press("Tab")
    page.locator("body").click(position={"x": 2, "y": 2})
    page.keyboard.press("s")
    page.wait_for_function(f"window.tether.frame.step === {rests + 1}")
    page.get_by_role("button", name="Reset").click()
    page.wait_for_function("window.tether.frame.step === 0")
    seed = page.evaluate("window.tether.setting.seed")
    page.get_by_role("button", name="New seed").click()
    page.wait_for_function(f"window.tether.setting.seed !== {seed}")


def test_sliders_fields_and_choices_change_the_run(page):
    steps(page, 1)
    lr = page.get_by_label("lr", exact=True).first
    lr.fill("0.25")
    lr.press("Enter")
    page.wait_for_function("window.tether.tables[0][0].lr === 0.25")
    assert step(page) == 1  # it goes on, it does not begin anew
    slider = page.get_by_label("lr, slider").first
    slider.focus()
    slider.press("ArrowRight")
    page.wait_for_function("window.tether.tables[0][0].lr > 0.25")
    lr.fill("-1")
    lr.press("Enter")
    page.get_by_text("lr=-1.0 is out of range").wait_for()
    lr.fill("0.1")
    lr.press("Enter")
    page.wait_for_function("window.tether.tables[0][0].lr === 0.1")
    page.get_by_label("method of dynamics 1").select_option("circle_cola_od")
    page.wait_for_function("window.tether.tables[0][0].on.kind === 'Circle'")
    page.get_by_role("button", name="+ another dynamics").click()
    page.wait_for_function("window.tether.tables.length === 3")
    page.get_by_label("remove dynamics 3").click()
    page.wait_for_function("window.tether.tables.length === 2")
    page.get_by_label("replicas", exact=True).fill("3")
    page.get_by_label("replicas", exact=True).press("Enter")
    page.wait_for_function("window.tether.frame.step === 0")
    page.get_by_label("data", exact=True).select_option("circles")
    page.wait_for_function("window.tether.setting.problem.kind === 'circles' && window.tether.points.length > 100")
    page.get_by_label("activation").select_option("relu")
    page.get_by_label("hidden layers").fill("5, 3")
    page.wait_for_function("window.tether.names.length === 6")


def test_a_wrong_word_shows_its_caret_and_stops_nothing(page):
    page.get_by_role("button", name="Start").click()
    word = page.get_by_label("word", exact=True)
    word.fill("BAQAB")
    caret = page.locator("pre.caret")
    caret.wait_for()
    assert caret.inner_text() == "BAQAB\n  ^"
    now = step(page)
    page.wait_for_function(f"window.tether.frame.step > {now + 5}")
    word.fill("OBA")
    page.wait_for_function("window.tether.tables[1][0].word === 'OBA'")
    assert caret.count() == 0
    page.get_by_text("OBA: B(h) A(h) O(h); one gradient per step").wait_for()
    for card, equation in ((0, "Euler–Maruyama (2.51)"), (1, "Ornstein–Uhlenbeck (2.53c)")):  # published, own table
        letter = page.locator(".card").nth(card).locator(".letter").first
        letter.hover()
        assert equation in letter.inner_text()


def test_a_published_method_is_edited_as_a_table(page):
    page.get_by_text("Its table of parts").click()
    page.get_by_label("where", exact=True).first.wait_for()
    page.get_by_label("on", exact=True).first.select_option("Circle")
    page.get_by_text("must be|no effect|matri").or_(page.locator(".card").first).first.wait_for()
    page.wait_for_function("window.tether.setting.dynamics[0].parts[0].on.kind === 'Circle'")
    assert page.get_by_label("method of dynamics 1").input_value() == ""


def test_the_page_works_under_its_own_policy(browser, address):
    page = browser.new_page()
    said = []
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    page.goto(address)
    page.get_by_text("Three runs differ in temperature alone").wait_for(timeout=60_000)
    page.get_by_role("button", name="Step", exact=True).click()
    page.get_by_text("step 1 ").wait_for(timeout=60_000)
    page.close()
    assert said == []


def test_every_view_is_drawn(page):
    steps(page, 3)
    painted = """() => {
        const c = document.querySelector('canvas.plot');
        return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((x) => x > 0);
    }"""
    for view in ("Weights", "Temperature", "Two weights", "Network"):
        page.get_by_label(view, exact=True).check()
        page.wait_for_function(painted)
    page.get_by_label("Two weights", exact=True).check()
    page.get_by_label("weight upwards").select_option("7")
    page.wait_for_function("window.tether.shot.pair[1] === 7")
    page.get_by_label("which replica is drawn").select_option("1")
    page.get_by_label("light or dark").click()
    assert "dark" in page.locator("#tether-window").get_attribute("class")


def test_the_shown_code_makes_what_is_on_the_screen_to_the_bit(page):
    steps(page, 5)
    page.get_by_label("lr", exact=True).first.fill("0.3")
    page.get_by_label("lr", exact=True).first.press("Enter")
    page.wait_for_function("window.tether.tables[0][0].lr === 0.3")
    steps(page, 4)
    page.get_by_role("button", name="Show me the code").click()
    code = page.locator("dialog pre").inner_text()
    seen = []
    exec(code.replace("print([float", "seen.append(nets.state_dict()); ([float"), {"seen": seen})
    page.get_by_role("button", name="Close").click()
    page.get_by_label("which replica is drawn").select_option("1")
    page.wait_for_function("window.tether.frame.at.weights0 !== undefined")
    time.sleep(0.5)
    for i, state in enumerate(seen):
        shown = page.evaluate(f"Array.from(window.tether.frame.at.weights{i})")
        assert shown == [x for p in state.values() for x in p[1].flatten().tolist()]


def test_the_address_holds_the_setting_and_a_reload_begins_the_same_run(page):
    steps(page, 2)
    first = page.evaluate("Array.from(window.tether.frame.at.weights0)")
    held = json.loads(urllib.parse.unquote(page.url.partition("#")[2]))
    assert held["seed"] == 3
    page.reload()
    page.wait_for_function("window.tether.frame !== null && window.tether.frame.step === 0")
    steps(page, 2)
    assert page.evaluate("Array.from(window.tether.frame.at.weights0)") == first


def test_scenes_narrow_screens_and_names_for_screen_readers(page):
    page.get_by_label("scene", exact=True).select_option("5")
    page.wait_for_function("window.tether.frame.rows.length === 2 && window.tether.frame.classes === 0")
    page.get_by_text("Fifty particles in a double well").wait_for()
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll('button, input, select, canvas')].filter((e) =>
            e.offsetParent !== null && !e.getAttribute('aria-label') && !e.textContent.trim()
            && !e.closest('label')?.textContent.trim()).length"""
    )
    assert unnamed == 0


def test_when_the_process_is_killed_the_page_says_so_and_goes_on_with_the_next(browser):
    with serving() as (address, process):
        page = browser.new_page(bypass_csp=True)
        page.goto(address)
        page.wait_for_function("window.tether.frame !== null", timeout=60_000)
        process.kill()
        page.get_by_text("The Python process has ended").wait_for(timeout=30_000)
        port = address.rsplit(":", 1)[1].strip("/")
        with serving("--port", port):
            page.wait_for_function("window.tether.gone.hidden && window.tether.frame !== null", timeout=60_000)
        page.close()


def test_when_the_process_that_trains_is_killed_the_page_says_so_and_another_begins_anew(browser):
    with serving() as (address, process):
        page, other = browser.new_page(bypass_csp=True), browser.new_page(bypass_csp=True)
        page.goto(address)
        page.wait_for_function("window.tether.frame !== null", timeout=60_000)
        (first,) = children(process.pid)
        other.goto(address)
        other.wait_for_function("window.tether.frame !== null", timeout=60_000)
        for one in (page, other):
            one.get_by_role("button", name="Start").click()
            one.wait_for_function("window.tether.frame.step > 3", timeout=60_000)
        os.kill(first, signal.SIGKILL)
        page.get_by_text("The process that trains has ended").wait_for(timeout=30_000)
        page.wait_for_function("window.tether.gone.hidden && window.tether.frame.step === 0", timeout=60_000)
        now = step(other)
        other.wait_for_function(f"window.tether.frame.step > {now + 5}", timeout=60_000)  # nothing has happened to it
        page.close()
        other.close()
