"""A module of graders and rewards that do what a completion says: sleep, spin, exit, …"""

from __future__ import annotations

GRADERS = '''
"""Graders that do what the completion says, and functions that misbehave. Nothing here is imported by the tests."""
import os, sys, time
from pathlib import Path
from covey.answers import Outcome
from covey.errors import RewardError
from covey.rewards.reward import Graded, Reward

def obey(text, row):
    what, _, rest = text.partition(" ")
    if what == "sleep": time.sleep(1000)
    if what == "spin":
        while True: pass
    if what == "exit": os._exit(3)
    if what == "abort": os.abort()
    if what == "raise": raise ValueError("no way")
    if what == "memory": bytearray(1 << (33 if sys.platform == "linux" else 45))
    if what == "print": print("noise " * 1000, flush=True); os.write(1, b"more noise")
    if what == "refuse": raise RewardError("the row has no answer")
    if what == "burn":
        end = time.process_time() + float(rest)
        while time.process_time() < end: pass
    if what == "busy":
        while not Path(rest).exists(): pass
    if what == "touch": Path(rest).touch()
    if what == "wait":
        while not Path(rest).exists(): time.sleep(0.01)
    right = text == row.get("answer", text)
    return Graded(float(right), Outcome.RIGHT if right else Outcome.WRONG)

def find(name, settings):
    key = (lambda text, row: (text, row["answer"])) if name == "cached" else None
    return Reward(name, None, obey, key)

def length(prompts, completions, **kwargs): return [float(len(c)) for c in completions]
def short(prompts, completions, **kwargs): return [1.0]
def nan(prompts, completions, **kwargs): return [1.0, float("nan"), None]
def text(prompts, completions, **kwargs): return [1.0, 2, "three"]
def number(prompts, completions, **kwargs): return 1.0
def raises(prompts, completions, **kwargs): raise KeyError("gold")
def exits(prompts, completions, **kwargs): sys.exit(1)
def dies(prompts, completions, **kwargs): os._exit(7)
def hangs(prompts, completions, **kwargs): time.sleep(1000)
async def waits(prompts, completions, **kwargs):
    import asyncio
    await asyncio.sleep(0)
    return [0.5 for _ in completions]
def logs(prompts, completions, trainer_state=None, log_extra=None, log_metric=None, **kwargs):
    print("to the log, please")
    log_extra("words", [len(c.split()) for c in completions])
    log_metric("seen", trainer_state.global_step)
    log_metric("seen", trainer_state.log_history[-1]["loss"])
    return [None] * len(completions)
'''
