"""Findings: automatic diagnoses of a run, each from one named rule and with its number.

Every rule is a pure function of the metrics, the config as a plain mapping, and the paired tests between evaluations.
It returns a finding or None; None too if the run is too short for it or the metric was not logged.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean

from covey.answers import Outcome
from covey.evaluation.comparison import LEVEL
from covey.evaluation.figures import sized_text, value_text
from covey.report.completion_findings import (
    AUDIT_RULES,
    EPISODE_RULES,
    GRADING_RULES,
    MIN_STEPS,
    Evidence,
    Finding,
    Rule,
    ends,
    noise,
    since,
    ten_steps_of_all,
)
from covey.report.panels import reward_names
from covey.report.summary import Change
from covey.runlog import names
from covey.runlog.metrics import series


def findings(run: Evidence) -> list[Finding]:
    """All findings: warnings first, then what went well."""
    found = [replace(finding, rule=rule.__name__) for rule in RULES if (finding := rule(run)) is not None]
    return sorted(found, key=lambda one: ("warn", "good", "note").index(one.level))


def held_out_change(run: Evidence) -> Finding | None:
    """The held-out figure of the first and the last evaluation: a change only by the paired test."""
    change = run.change
    if change is None:
        return None
    name, (before, after, _), found = _sentence(change), change.values, change.paired.found
    steps = f"From {before} at step {change.steps[0]} to {after} at step {change.steps[1]}."
    if found is None:
        figure = sized_text(change.difference, change.metric)
        return Finding("note", f"{name}: not tested", figure, f"{steps} There is {change.test_text}.")
    if change.verdict > 0:
        return Finding("good", f"{name} rose", change.test_text, steps)
    if change.verdict < 0:
        text = f"{steps} Use an earlier checkpoint, or a smaller learning rate."
        return Finding("warn", f"{name} fell", change.test_text, text)
    detectable = sized_text(found.plan.detectable, change.metric).lstrip("+")
    power = (
        "" if math.isnan(found.plan.detectable) else f" These problems tell a true difference of about {detectable}."
    )
    text = f"{steps}{power} Use more held-out problems, or train longer."
    return Finding("note", f"{name}: no change beyond chance", change.test_text, text)


def best_was_earlier(run: Evidence) -> Finding | None:
    """The held-out figure ends below its best in training by the paired test, corrected for choosing the best."""
    change = run.since_best
    if change is None or change.verdict >= 0:
        return None
    found = change.paired.found
    if found is None or found.p_value * run.candidates >= LEVEL:  # Bonferroni: the best is the highest of several
        return None
    best, last, _ = change.values
    kept = (run.config.get("evaluation") or {}).get("keep_best", True)
    cure = (
        "best_model links to the checkpoint of that step." if kept else "evaluation.keep_best keeps such a checkpoint."
    )
    return Finding(
        "warn",
        "The best was earlier",
        change.test_text,
        f"{_sentence(change)} was {best} at step {change.steps[0]} and ends at {last}. {cure} A smaller learning rate "
        "may help.",
    )


def _sentence(change: Change) -> str:
    return change.what[:1].upper() + change.what[1:]


def no_signal(run: Evidence) -> Finding | None:
    """From some step to the end, half or more of the groups have equal rewards, or all of them for ten steps."""
    points = series(run.rows, names.FRAC_REWARD_ZERO_STD)
    if run.audit:  # `groups_without_signal` counts them all
        return None
    start = since(points, lambda value: value >= 0.5) if len(points) >= MIN_STEPS else None
    if start is None or len(points) - start < MIN_STEPS // 2:
        start = ten_steps_of_all(points)
    if start is None:
        return None
    share, step = fmean(value for _, value in points[start:]), points[start][0]
    reward = fmean(value for _, value in (series(run.rows, names.REWARD) or points)[-10:])
    right = series(run.rows, names.grader_name(Outcome.RIGHT))
    solved = right[-1][1] > 0.5 if right else reward > 0.5
    cure = "Harder problems" if solved else "Easier problems"
    other = "" if run.value("objective.resample_groups") else ", or objective.resample_groups,"
    return Finding(
        "note" if solved and run.improved else "warn",
        "Groups without signal",
        f"{share:.0%} of groups",
        f"From step {step} on, {share:.0%} of groups had no signal: all their completions got the same reward. "
        f"{cure} or more generations per prompt{other} would help.",
    )


def length_without_gain(run: Evidence) -> Finding | None:
    """Completions grow by a fifth or more while the held-out figure does not rise (see `_rises`)."""
    lengths, change = series(run.rows, names.COMPLETION_LENGTH), run.change
    if len(lengths) < MIN_STEPS or change is None or _rises(change):
        return None
    early, late = ends(lengths)
    if early <= 0 or late < 1.2 * early:
        return None
    unbiased = run.value("training.loss_type") == "dr_grpo"
    loss = "" if unbiased else "a loss without length bias (training.loss_type=dr_grpo) or "
    return Finding(
        "warn",
        "Longer, not better",
        f"{early:.0f} → {late:.0f} tokens",
        f"Completions grow longer while {change.what} does not rise. Try {loss}a length reward.",
    )


def reward_without_gain(run: Evidence) -> Finding | None:
    """Training reward rises by more than its noise while the held-out figure does not (see `_rises`)."""
    rewards, change = series(run.rows, names.REWARD), run.change
    if len(rewards) < MIN_STEPS or change is None or _rises(change):
        return None
    early, late = ends(rewards)
    if late - early <= max(0.1, 2 * noise(rewards)):
        return None
    gained = sized_text(change.difference, change.metric)
    return Finding(
        "warn",
        "The reward rises alone",
        f"reward {late - early:+.2f}",
        f"The training reward rises, but {change.what} does not ({gained}): the policy may be "
        "exploiting the rewards (reward hacking) or memorising the training problems. Read completions with a high "
        "reward.",
    )


def format_saturated(run: Evidence) -> Finding | None:
    """A format reward is (nearly) at its maximum for all completions: it no longer gives a signal."""
    for reward in reward_names(run.rows):
        points = series(run.rows, names.reward_mean(reward))
        if not any(word in reward for word in ("format", "tag")) or len(points) < MIN_STEPS:
            continue
        start = since(points, lambda value: value >= 0.97)
        if start is not None and len(points) - start >= MIN_STEPS // 2:
            return Finding(
                "good" if start else "note",
                "A format reward is saturated",
                f"{reward} {points[-1][1]:.2f}",
                f"The reward {reward} has been saturated since step {points[start][0]}: nearly every completion gets "
                "it, so it no longer gives a signal.",
            )
    return None


def kl_passed_target(run: Evidence) -> Finding | None:
    """The KL divergence at the end is well above the adaptive controller's target."""
    kl = (run.config.get("objective") or {}).get("kl") or {}
    target, points = kl.get("kl_target"), series(run.rows, names.KL)
    if kl.get("controller") != "adaptive" or not target or len(points) < MIN_STEPS:
        return None
    _, late = ends(points)
    if late <= 1.25 * target:
        return None
    passed = next(step for step, value in points if value > target)
    return Finding(
        "warn",
        "The KL passed its target",
        f"KL {late:.3g}",
        f"The KL passed its target of {target:g} at step {passed} and ends at {late / target:.1f} times the target. "
        "Try a smaller objective.kl.kl_horizon, a larger training.beta or a smaller learning rate.",
    )


def near_argmax(run: Evidence) -> Finding | None:
    """Under xDr.GRPO, right completions weigh more than e⁴ times wrong ones, so that only the best count."""
    objective, points = run.config.get("objective") or {}, series(run.rows, names.LOG_ODDS)
    if objective.get("name") != "xdr" or not objective.get("xdr_tau") or not points:
        return None
    late = points[-1][1] if len(points) < MIN_STEPS else ends(points)[1]
    if late <= 4:
        return None
    return Finding(
        "note",
        "Only the best of a group counted",
        f"log-odds {late:.3g}",
        f"A right completion weighed e^{late:.3g} times a wrong one, nearly as with xdr_tau=0: the temperature is low "
        f"for completions of this length. objective.xdr_tau={objective['xdr_tau'] * late / 2:.2g} would make that e^2.",
    )


def truncation(run: Evidence) -> Finding | None:
    """A tenth or more of the last completions were truncated at the length limit."""
    points = series(run.rows, names.CLIPPED_RATIO)
    if len(points) < run.fewest:
        return None
    late = fmean(value for _, value in points[-10:])
    if late < 0.1:
        return None
    limit, masked = run.value("training.max_completion_length"), run.value("training.mask_truncated_completions")
    of = f" of {limit} tokens" if limit else ""
    graded = "cut off" if run.config.get("script") else "graded as incomplete"  # a script's rewards are its own
    title, counted = "Truncated completions", "masked" if masked else graded
    other = "" if masked else ", or set training.mask_truncated_completions=true"
    if masked and ten_steps_of_all(points) is not None:
        title, counted = "Nothing is trained", "masked, so that no reward has any effect"
    return Finding(
        "warn",
        title,
        f"{late:.0%} truncated",
        f"Of the last completions {late:.0%} were truncated at the length limit{of} and {counted}. Raise "
        f"training.max_completion_length{other}.",
    )


def entropy_collapse(run: Evidence) -> Finding | None:
    """The policy's entropy fell below a fifth of its start; a note if the held-out figure rose."""
    points = series(run.rows, names.ENTROPY)
    if len(points) < MIN_STEPS:
        return None
    early, late = ends(points)
    if early <= 0 or late >= 0.2 * early:
        return None
    return Finding(
        "note" if run.improved else "warn",
        "Entropy collapsed",
        f"{early:.3g} → {late:.3g} nats",
        f"Entropy per token fell to {late / early:.0%} of its start: completions of a group hardly differ now, so "
        "there is little signal. Try a higher temperature, a larger training.epsilon_high or an earlier checkpoint.",
    )


NUMBER_TYPE_LIMIT = 0.013
STALENESS_LIMIT = 0.2
"""Ten times the largest value of a healthy run, in nats per token. Measured with the starter on arithmetic, at its own
learning rate: number types by bfloat16 weights in 8 steps, 0.0013 at most (float32: 1e-6, vLLM in float32: 3e-5);
staleness by scoring completions of up to 4 rounds ago in 14 steps, 0.020 at most."""


def sampler_apart(run: Evidence) -> Finding | None:
    """The sampler's log-probs are further from the trainer's than in healthy runs, by the part that is largest."""
    metrics = (names.SAMPLING_GAP, *names.SAMPLING_GAP_PARTS, f"{names.SAMPLING_RATIO}outside")
    last = [[value for _, value in series(run.rows, metric)][-10:] for metric in metrics]
    if len(last[0]) < 3:
        return None
    gap, number_type, cut_off, staleness, outside = (fmean(values) if values else 0.0 for values in last)
    title, share = "The sampler is far from the trainer", f" {outside:.1%} of the ratios are out of bounds."
    kept = "Take" if run.value("rollout.support") == "kept" else "Set rollout.support=kept, with"
    head = "" if run.value("training.cast_lm_head_to_fp32") else "try training.cast_lm_head_to_fp32=true, "
    if cut_off > NUMBER_TYPE_LIMIT and gap > cut_off / 2:
        return Finding(
            "warn",
            "Ratios hold what was cut off",
            f"{cut_off:.2g} nats per token",
            "The loss normalises over the full vocabulary, and the sampler over the tokens that top-k, top-p and min-p "
            f"left: a token's ratio is {math.exp(-cut_off):.3f} where it should be 1. {kept} an "
            "engine that returns supports.",
        )
    if number_type > NUMBER_TYPE_LIMIT:
        return Finding(
            "warn",
            title,
            f"{number_type:.2g} nats per token",
            f"At equal weights their log-probs differ by more than {NUMBER_TYPE_LIMIT} nats, ten times what bfloat16 "
            f"does in a healthy run.{share} Let both compute in one dtype, {head}and "
            "check that the engine has the policy's weights and settings.",
        )
    if staleness > STALENESS_LIMIT:
        return Finding(
            "warn",
            title,
            f"{staleness:.2g} nats per token",
            f"Completions of older weights are more than {STALENESS_LIMIT} nats per token off, ten times a healthy "
            f"run.{share} Lower training.staleness or training.learning_rate.",
        )
    return None


def reasoning_tokens(run: Evidence) -> Finding | None:
    """The fold gap, where `covey vocab --fold-gap` has measured it: the main held-out set's."""
    gap = run.fold_gap.get(names.TEST_SET)
    if gap is None:
        return None
    with_them, without = (value_text(gap[side], gap["metric"]) for side in ("second", "first"))
    text = f"On the held-out problems {with_them} with the reasoning tokens, and {without} after folding them back."
    if gap["p_value"] >= LEVEL:
        return Finding("note", "Reasoning tokens: no effect beyond chance", gap["text"], text)
    if gap["difference"] > 0:
        return Finding("good", "Reasoning tokens help", gap["text"], text)
    text += " `covey export RUN FOLDER --fold` removes them."
    return Finding("warn", "Reasoning tokens cost", gap["text"], text)


def reasoning_unused(run: Evidence) -> Finding | None:
    """No completion of the run has a reasoning token, or hardly any."""
    shares = names.REASONING_SHARE, names.THINKING_SHARE
    used, thought = ([value for _, value in series(run.rows, share)] for share in shares)
    if len(used) < run.fewest or max(used) >= 0.001:
        return None
    text = "The model hardly thinks between the thinking tags, where alone they can be used: ask for it in the prompt "
    text += "(dataset.system_prompt)."
    if max(thought) >= 0.001:
        text = (
            "It thinks without them: copy the tokens that it uses (model.reasoning_vocab_size=full copies all), each "
        )
        text += "with the probability of its original (model.reasoning_start=copy)."
    return Finding("warn", "The reasoning tokens are not used", f"{max(used):.1%} of thinking tokens at most", text)


RULES: tuple[Rule, ...] = (
    held_out_change,
    best_was_earlier,
    *AUDIT_RULES,
    *GRADING_RULES,
    reward_without_gain,
    length_without_gain,
    no_signal,
    entropy_collapse,
    kl_passed_target,
    near_argmax,
    truncation,
    sampler_apart,
    *EPISODE_RULES,
    format_saturated,
    reasoning_tokens,
    reasoning_unused,
)


def _rises(change: Change) -> bool:
    """Whether a held-out figure rises: by the paired test, or by more than 0.01 (a point of a share)."""
    return change.verdict > 0 or change.difference > 0.01
