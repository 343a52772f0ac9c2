"""The overhead of `covey launch`: seconds from the command to the start of the training process.

python benchmarks/launching.py [--times 9] [RECIPE key=value ...]

Wall time of all that the launcher does before: Python's own start, the config, the plan, the checks, the files of the
run, the guard. It would include the start of a vLLM server, so use a run without one. Each launch is ended once the
training process exists.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress

import psutil

from covey.launch.plan import ENTRY

_PATIENCE = 60.0


def seconds(words: Sequence[str], folder: str) -> float:
    """From the command to the start of the training process, by the clock of the kernel (in steps of 0.01 s)."""
    paths = (f"output_dir={folder}/out", f"launch.log_dir={folder}/logs")
    launcher = subprocess.Popen(
        [sys.executable, "-m", "covey", "launch", *words, *paths], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    give_up = time.monotonic() + _PATIENCE
    began = psutil.Process(launcher.pid).create_time()  # of one clock with the others'; time.time() is another
    try:
        while time.monotonic() < give_up and launcher.poll() is None:
            for one in psutil.Process(launcher.pid).children(recursive=True):
                with suppress(psutil.Error):
                    command = one.cmdline()
                    if ENTRY in command and not any(word.endswith("guard.py") for word in command):
                        return one.create_time() - began
            time.sleep(0.01)
        raise SystemExit(f"no training process came up within {_PATIENCE:.0f} s: try `covey launch {' '.join(words)}`")
    finally:
        launcher.kill()  # guards and reaper end the rest
        launcher.wait()


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=9, help="launches that are measured (default: %(default)s)")
    asked, run = parser.parse_known_args(words)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        found = [seconds([*run, f"run_name=r{number}"], folder) for number in range(asked.times)]
    print(
        f"until training's own start: {statistics.median(found):.2f} s in the middle, {min(found):.2f} to "
        f"{max(found):.2f} s ({asked.times} launches)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
