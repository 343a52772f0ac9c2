"""Make the pictures of the report and of `covey view` for the documentation, each in both themes along its diagonal.

    python scripts/pictures.py report RUN
    python scripts/pictures.py view FOLDER RUN EPISODES

RUN and EPISODES are runs of FOLDER: one for its page, and one whose completions are episodes. Needs Chromium with its
chromedriver, and selenium.
"""

from __future__ import annotations

import base64
import io
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

from PIL import Image

from covey.report.page import write_report

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
WIDTH, HEIGHT = 1240, 1180
CALLED = """const field = document.querySelector("[name=episode]");
if (!field.dataset.chosen) {
  field.dataset.chosen = field.value = "called";
  field.dispatchEvent(new Event("change"));
}
return !!document.querySelector(".card.chosen .call");"""
"""Shows the episodes that have called a tool; whether they are there."""


def main(kind: str, *given: str) -> None:
    """Write the pictures."""
    if kind == "report":
        picture(write_report(Path(given[0])).resolve().as_uri(), IMAGES / "report.png")
        return
    folder, run, episodes = given
    command = [sys.executable, "-m", "covey", "view", folder, "--port", "0", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            picture(f"{address}#/?baseline={quote(run)}", IMAGES / "view_runs.png", width=1400, height=620)
            picture(f"{address}#/run?id={quote(run)}", IMAGES / "view_run.png")
            place = f"{address}#/run?id={quote(episodes)}&tab=completions"
            picture(place, IMAGES / "view_episode.png", height=900, script=CALLED)
        finally:
            server.terminate()


def picture(address: str, target: Path, width: int = WIDTH, height: int = HEIGHT, script: str = "return true") -> None:
    """Take a page's picture in both themes once the script answers true, and combine the two along the diagonal."""
    from selenium.webdriver.support.ui import WebDriverWait

    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from browser import browser, open_address

    shots = []
    for dark in (False, True):
        with browser(width, height, dark=dark) as driver:
            open_address(driver, address)
            WebDriverWait(driver, 60).until(lambda one: one.execute_script(script))
            shots.append(Image.open(io.BytesIO(base64.b64decode(driver.get_screenshot_as_base64()))).convert("RGB"))
    light, dark_one = shots
    mask = Image.new("1", light.size, 0)
    for row in range(light.size[1]):
        edge = int(light.size[0] * (0.68 - 0.36 * row / light.size[1]))
        mask.paste(1, (edge, row, light.size[0], row + 1))
    light.paste(dark_one, (0, 0), mask)
    target.parent.mkdir(parents=True, exist_ok=True)
    light.quantize(128).save(target, optimize=True)
    print(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
