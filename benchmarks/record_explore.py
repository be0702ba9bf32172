"""Pictures of `tether explore` for README and docs: two screenshots and an animation.

    python benchmarks/record_explore.py            writes docs/explore*.png and docs/explore.gif; about two minutes

Needs chromium, playwright and pillow.
"""

import io
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

HERE = Path(__file__).parents[1] / "docs"
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
WIDE = 880  # pixels of the page in the animation


def frames(page, scene, seconds, every, view):
    """Pictures of the fields of a scene while it runs."""
    page.get_by_label("scene", exact=True).select_option(str(scene))
    page.get_by_label(view, exact=True).check()
    page.wait_for_function("window.tether.frame.step === 0")
    page.evaluate("window.tether.toggle()")
    found, began = [], time.monotonic()
    while time.monotonic() < began + seconds:
        box = page.locator(".cards").bounding_box()
        clip = {"x": 0, "y": box["y"] - 8, "width": WIDE, "height": 560}
        found.append(Image.open(io.BytesIO(page.screenshot(clip=clip, full_page=True))).convert("RGB"))
        time.sleep(every)
    page.evaluate("window.tether.toggle()")
    return found


def main():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tether", "explore", "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    address = re.search(r"http\S+/", server.stdout.readline())[0]
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            page = browser.new_page(viewport={"width": WIDE, "height": 1100}, bypass_csp=True)
            page.goto(address)
            page.wait_for_function("window.tether.frame !== null")
            pictures = frames(page, 2, 14, 0.35, "Temperature") + frames(page, 5, 7, 0.35, "Two weights")
            small = [one.resize((WIDE * 3 // 4, 560 * 3 // 4), Image.Resampling.LANCZOS) for one in pictures]
            palette = small[len(small) // 2].quantize(64)
            reduced = [one.quantize(64, palette=palette, dither=Image.Dither.NONE) for one in small]
            reduced[0].save(
                HERE / "explore.gif", save_all=True, append_images=reduced[1:], duration=200, loop=0, optimize=True
            )
            for name, wide, scheme, scene in (("explore", 1280, "light", 4), ("explore-dark", 390, "dark", 2)):
                shot = browser.new_page(viewport={"width": wide, "height": 900}, color_scheme=scheme, bypass_csp=True)
                shot.goto(address)
                shot.wait_for_function("window.tether.frame !== null")
                shot.get_by_label("scene", exact=True).select_option(str(scene))
                shot.wait_for_function("window.tether.frame.step === 0")
                shot.evaluate("window.tether.toggle()")
                time.sleep(12)
                shot.screenshot(path=HERE / f"{name}.png", full_page=wide > 400)
            browser.close()
    finally:
        server.terminate()
        server.wait()
    print(f"{len(pictures)} frames, {(HERE / 'explore.gif').stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
