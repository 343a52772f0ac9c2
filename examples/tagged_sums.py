"""Write rows.jsonl: 64 sums and differences with their answers in tags, for `docs/warm_start.md`."""

import json
import random
from pathlib import Path

rng = random.Random(0)
with Path("rows.jsonl").open("w", encoding="utf-8") as file:
    for _ in range(64):
        first, second = sorted((rng.randint(0, 99), rng.randint(0, 99)), reverse=True)
        sign, answer = rng.choice([("+", first + second), ("-", first - second)])
        text = f"<think>{first} {sign} {second} = {answer}</think>\n<answer>{answer}</answer>"
        row = {"prompt": f"What is {first} {sign} {second}?", "completion": text}
        file.write(json.dumps(row) + "\n")
