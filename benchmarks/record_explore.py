"""Pictures of `tether explore` for README and docs: screenshots, and an animation of two scenes.

    python benchmarks/record_explore.py            writes docs/explore*.png and docs/explore*.webp; about two minutes

Needs chromium, playwright and pillow. The run goes on for so many steps, not seconds, between two pictures.
"""

import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from explore import FLAGS

DOCS = Path(__file__).parents[1] / "docs"
WIDE, HIGH, DRAWN = 1240, 374, 800  # pixels of what is filmed, and the width of the animation
MOST = 500_000  # bytes of a file
SHOTS = (  # name, width, height, colours, scene, instrument, steps
    ("explore", 1280, 1060, "light", 4, "Weights", 6000),
    ("explore-dark", 1280, 1260, "dark", 0, "Temperature", 9000),
    ("explore-narrow", 390, 1000, "light", 2, "Two weights", 6000),
    ("explore-narrow-dark", 390, 1000, "dark", 5, "Two weights", 3000),
)
FILMS = (("explore", 2, 36, 250), ("explore-well", 5, 30, 60))  # name, scene, pictures, steps between them


def show(page, address, scene, view):
    page.goto(address)
    page.wait_for_function("window.tether.frame !== null")
    page.get_by_label("scene", exact=True).select_option(str(scene))
    page.wait_for_function(
        f"tether.frame.step === 0 && tether.watch.textContent.includes(tether.facts.scenes[{scene}].name)"
    )
    page.get_by_label(view, exact=True).check()


def advance(page, steps):
    """Make so many steps and wait until the last is drawn."""
    last = page.evaluate("tether.frame.step") + steps
    page.evaluate(f"tether.send({{ type: 'run', on: false, steps: {steps} }})")
    page.wait_for_function(f"tether.frame.step === {last} && !tether.due")
    page.wait_for_timeout(60)


def film(page, address, scene, view, pictures, steps):
    """Pictures of a scene: its name, the fields, the instruments."""
    show(page, address, scene, view)
    found = []
    for _ in range(pictures):
        advance(page, steps)
        top = page.locator(".cards").bounding_box()["y"] - 4
        clip = {"x": 0, "y": top, "width": WIDE, "height": HIGH}
        found.append(Image.open(io.BytesIO(page.screenshot(clip=clip, full_page=True))).convert("RGB"))
    return found


def save(pictures, path):
    """An animation of a smaller size, of lower quality until the file is small enough."""
    small = [one.resize((DRAWN, HIGH * DRAWN // WIDE), Image.Resampling.LANCZOS) for one in pictures]
    times = [140] * (len(small) - 1) + [2000]
    for quality in (80, 65, 50, 35):
        small[0].save(path, save_all=True, append_images=small[1:], duration=times, loop=0, quality=quality, method=4)
        if path.stat().st_size < MOST:
            return


def main():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tether", "explore", "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        address = re.search(r"http\S+/", server.stdout.readline())[0]
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            page = browser.new_page(viewport={"width": WIDE, "height": 1000}, bypass_csp=True)
            page.set_default_timeout(300_000)
            for name, scene, pictures, steps in FILMS:
                save(film(page, address, scene, "Two weights", pictures, steps), DOCS / f"{name}.webp")
            for name, wide, high, scheme, scene, view, steps in SHOTS:
                shot = browser.new_page(viewport={"width": wide, "height": high}, color_scheme=scheme, bypass_csp=True)
                shot.set_default_timeout(300_000)
                show(shot, address, scene, view)
                for _ in range(30):
                    advance(shot, steps // 30)
                shot.screenshot(path=DOCS / f"{name}.png")
                shot.close()
                Image.open(DOCS / f"{name}.png").convert("RGB").quantize(200).save(DOCS / f"{name}.png", optimize=True)
            browser.close()
    finally:
        server.terminate()
        server.wait()
    for path in sorted(DOCS.glob("explore*.*")):
        print(f"{path.name}: {path.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
