"""Write rows.jsonl: sums and differences of three digits with their answers, for `docs/warm_start.md`."""

import json
import random

rng = random.Random(0)
with open("rows.jsonl", "w", encoding="utf-8") as file:
    for _ in range(512):
        first, second = sorted((rng.randint(100, 999), rng.randint(100, 999)), reverse=True)
        sign, answer = rng.choice([("+", first + second), ("-", first - second)])
        row = {"prompt": f"What is {first} {sign} {second}?", "completion": f"{first} {sign} {second} is {answer}."}
        file.write(json.dumps(row) + "\n")
