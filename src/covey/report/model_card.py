"""The model card of a run: model, data, rewards, results, and how to use it.

Made from the files of the run directory only. It leaves out local folders and tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from covey.advice import command
from covey.evaluation.estimators import Estimate
from covey.evaluation.figures import ends_text, markdown_table, value_text
from covey.model.starter import STARTERS
from covey.report.load import RunRecord, environment_text, load_run, objective_of, short_name
from covey.report.summary import Change, changes, key_settings
from covey.report.tables import sampling_text
from covey.runlog.evaluations import StoredEvaluation, list_evaluations
from covey.runlog.files import write_atomically
from covey.runlog.names import set_label

CARD = "README.md"


def write_model_card(run: Path, folder: Path, *, state: str = "final") -> Path:
    """Write the card of a run's model next to its weights.

    Args:
        state: the weights: `final`, `best`, or `checkpoint-N`.

    Raises:
        ConfigError: the run cannot be read.
    """
    adapters = (folder / "adapter_config.json").is_file()
    write_atomically(folder / CARD, model_card(load_run(run), state=state, adapters=adapters))
    return folder / CARD


def model_card(
    record: RunRecord,
    *,
    state: str = "final",
    hub_id: str | None = None,
    revision: str | None = None,
    adapters: bool = False,
) -> str:
    """The card as Markdown, with metadata for the Hugging Face Hub.

    Args:
        state: the weights, as in `write_model_card`.
        hub_id: the model's id on the hub.
        revision: its branch on the hub; None for the main one.
        adapters: whether the weights are adapters.
    """
    config = _public(record.config)
    model, dataset = config.get("model") or {}, config.get("dataset") or {}
    objective = (objective_of(config) or "grpo").rpartition(":")[2]
    evaluated = changes(record, _step(record, state))
    stored = [
        found for found in list_evaluations(record.run.root, skip_damaged=True) if found.done and _is_of(found, state)
    ]
    title = hub_id.rpartition("/")[2] if hub_id else record.name
    name, on_hub = str(model.get("name") or "an unknown model"), _is_hub_id(record)
    examples = f"`{rows}`" if (rows := (config.get("sft") or {}).get("rows")) else ""
    linked = f"[{name}](https://huggingface.co/{name})" if on_hub else f"`{name}`"
    parts = [
        "---\n" + yaml.safe_dump(_metadata(record, title, evaluated, adapters), sort_keys=False) + "---\n",
        f"# {title}\n",
        f"{linked} trained with {_OBJECTIVES.get(objective, objective)} on {examples or _data(dataset)}, with Covey on "
        f"top of TRL. {_STATES.get(state, f'This is {state} of the run.')}\n",
        *_results(evaluated, stored),
        *_usage(hub_id or "FOLDER", revision, name, adapters, dataset),
        *_tools(config),
        "## How it was trained\n",
        markdown_table(("", ""), [(key, value) for key, value in key_settings(record) if key != "commit"]),
        "\n<details><summary>The full config</summary>\n\n```yaml\n"
        + yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=100)
        + "```\n\n"
        + ("" if "script" in config else "Saved as a file, `covey train FILE` runs it again.\n\n")
        + "</details>\n",
        "## Limits\n",
        "The results hold for problems like those in the evaluation, with the sampling above; nothing else was "
        "measured. The model may share the errors and biases of its base model.\n",
    ]
    return "\n".join(parts)


_OBJECTIVES = {
    "sft": "supervised training",
    **{"grpo": "GRPO", "maxent": "MaxEnt-GRPO", "dr_grpo": "Dr. GRPO", "maxrl": "MaxRL", "xdr": "xDr.GRPO"},
    **{"passk": "pass@k policy optimisation", "unique": "uniqueness-aware GRPO", "darling": "DARLING"},
    **{"seed": "SEED-GRPO", "quantile": "quantile advantages", "unlikely": "the unlikeliness reward"},
}
_STATES = {
    "final": "These are the weights after the last step.",
    "best": "These are the weights of the step with the best held-out result.",
}


def _metadata(record: RunRecord, title: str, evaluated: Sequence[Change], adapters: bool) -> dict[str, Any]:
    model, dataset = record.config.get("model") or {}, record.config.get("dataset") or {}
    found: dict[str, Any] = {"library_name": "peft" if adapters else "transformers", "pipeline_tag": "text-generation"}
    if _is_hub_id(record):
        found["base_model"] = model["name"]
    if dataset.get("id"):
        found["datasets"] = [dataset["id"]]
    found["tags"] = ["covey", "trl", (objective_of(record.config) or "grpo").rpartition(":")[2]]
    results = [
        {
            "task": {"type": "text-generation"},
            "dataset": {"name": f"{_data_name(dataset)} ({set_label(one.held_out)})", "type": _data_name(dataset)},
            "metrics": [{"type": one.metric, "value": round(one.after.value, 4)}],
        }
        for one in evaluated
    ]
    if results:
        found["model-index"] = [{"name": title, "results": results}]
    return found


def _results(evaluated: Sequence[Change], stored: list[StoredEvaluation]) -> list[str]:
    if not evaluated and not stored:
        return ["## Results\n", "The model was not evaluated.\n"]
    parts = ["## Results\n"]
    if evaluated:
        changed = [(one.what, *one.texts, one.test_text) for one in evaluated]
        note = "During training, with 95% intervals; the change by the paired test on the same problems."
        parts += [f"{note}\n", markdown_table(("", "before", "this model", "change"), changed)]
    for found in stored:
        settings, how = found.settings, sampling_text(found.settings.get("sampling") or {})
        problems, samples = (settings.get("data") or {}).get("problems"), settings.get("num_samples")
        graded = f", grader {settings['grader']}" if settings.get("grader") else ""
        parts.append(f"\n`{settings.get('name')}`: {problems} problems, {samples} completions each, {how}{graded}.\n")
        figures = {name: Estimate(**figure) for name, figure in found.summary.items()}
        rows = [
            (name, value_text(one.value, name), ends_text(one, name))
            for name, one in figures.items()
            if not math.isnan(one.value) and not (name.startswith("grader/") and one.value == 0)
        ]
        parts.append(markdown_table(("", "value", "95% interval"), rows))
    return [*parts, ""]


def _usage(name: str, revision: str | None, base: str, adapters: bool, dataset: Mapping[str, Any]) -> list[str]:
    source = f'"{name}", revision="{revision}"' if revision else f'"{name}"'
    system = dataset.get("system_prompt")
    first = f'    {{"role": "system", "content": {str(system)!r}}},\n' if system else ""
    place = f'STARTERS["{base}"]' if base in STARTERS else f'"{base}"'
    imports = "from covey.model.starter import STARTERS\n" if base in STARTERS else ""
    load = (
        f'model = AutoModelForCausalLM.from_pretrained({place}, dtype="auto", device_map="auto")\n'
        f"model = PeftModel.from_pretrained(model, {source})\n"
        if adapters
        else f'model = AutoModelForCausalLM.from_pretrained({source}, dtype="auto", device_map="auto")\n'
    )
    return [
        "## How to use it\n",
        "```python\n"
        + (f"{imports}from peft import PeftModel\n" if adapters else "")
        + "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        f"tokenizer = AutoTokenizer.from_pretrained({source})\n"
        + load
        + f'messages = [\n{first}    {{"role": "user", "content": "…"}},\n]\n'
        "inputs = tokenizer.apply_chat_template(\n"
        '    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True\n'
        ").to(model.device)\n"
        "output = model.generate(**inputs, max_new_tokens=512)\n"
        'print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))\n'
        "```\n",
        f"`{command('eval {model} model.revision={revision}', model=name, revision=revision)}` evaluates it.\n"
        if revision
        else f"`{command('eval {model}', model=name)}` evaluates it; `{command('chat {model}', model=name)}` starts a "
        "chat with it.\n",
    ]


def _tools(config: Mapping[str, Any]) -> list[str]:
    """What a model that was trained with tools needs besides."""
    settings = config.get("environment") or {}
    used = [*filter(None, [environment_text(config)]), *map(short_name, settings.get("tools") or ())]
    if not used:
        return []
    listed = ", ".join(f"`{name}`" for name in used)
    return [
        f"It was trained with {listed}: give `apply_chat_template` the functions that it may call as `tools=[…]`, run "
        "its calls, and append each result as a message of the role `tool`. `covey eval` and `covey chat` do so for "
        "the run.\n"
    ]


def _step(record: RunRecord, state: str) -> int:
    if state == "best":
        best = record.run.best_checkpoint()
        return record.step if best is None else int(best.name.rpartition("-")[2])
    return int(state.rpartition("-")[2]) if state.startswith("checkpoint-") else record.step


def _is_of(found: StoredEvaluation, state: str) -> bool:
    """Whether an evaluation is of these weights, by the name that `covey eval` gives its folder."""
    return f"-{state}-" in found.name


def _public(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config without secrets, and with only the last part of local paths."""
    return {key: _cleaned(value) for key, value in config.items() if not key.endswith(_SECRETS)}


_SECRETS = ("token", "api_key", "password")


def _cleaned(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _public(value)
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    if isinstance(value, str) and "\n" not in value and value.startswith(("/", "~", "./", "../")):
        return value.rstrip("/").rpartition("/")[2]
    return value


def _is_hub_id(record: RunRecord) -> bool:
    name = str((record.config.get("model") or {}).get("name") or "")
    return name.count("/") == 1 and not name.startswith((".", "/", "~")) and not Path(name).exists()


def _data_name(dataset: Mapping[str, Any]) -> str:
    path = dataset.get("path")
    return str(
        dataset.get("id")
        or (Path(str(path)).name if path else None)
        or dataset.get("task")
        or ("rows of a script" if "rows" in dataset else "several sets")
    )


def _data(dataset: Mapping[str, Any]) -> str:
    if dataset.get("id"):
        return f"[{dataset['id']}](https://huggingface.co/datasets/{dataset['id']})"
    return f"`{_data_name(dataset)}`"
