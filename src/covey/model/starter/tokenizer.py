"""The starter model's tokenizer: byte-level BPE, small, one token per digit, with a chat template.

It encodes any text (every byte is a token), so that the starter also runs on real data. The tags are
added tokens but not *special* ones, so that `decode(..., skip_special_tokens=True)`, the input of rewards, keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCAB_SIZE = 512

PAD_TOKEN = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
TOOL_TAGS = ("<tool_call>", "</tool_call>")

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

AGENT_CHAT_TEMPLATE = (
    "{% if tools %}"
    "{{ '<|im_start|>system\n' }}"
    "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] + '\n' }}{% endif %}"
    "{{ 'Tools:' }}"
    "{% for tool in tools %}"
    "{% set function = tool['function'] or tool %}"
    "{{ ' ' + function['name'] + '(' + (function['parameters'] or {}).get('properties', {}) | join(', ') + ')' }}"
    "{% endfor %}"
    "{{ '<|im_end|>\n' }}"
    "{% endif %}"
    "{% for message in messages %}"
    "{% if not (tools and loop.first and message['role'] == 'system') %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + (message['content'] or '') }}"
    "{% for call in message['tool_calls'] or [] %}"
    "{% set function = call['function'] or call %}"
    "{% set arguments = function['arguments'] %}"
    "{{ '<tool_call>' + function['name'] }}"
    "{{ (arguments if arguments is string else arguments | tojson) + '</tool_call>' }}"
    "{% endfor %}"
    "{{ '<|im_end|>\n' }}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Tools are shown in the system turn, each as `name(parameters)`; a call is `<tool_call>name{arguments}</tool_call>`
with its arguments in JSON, and a result is a turn of its own. Without tools and calls it renders as `CHAT_TEMPLATE`."""

RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open_pattern": r"<tool_call>(?P<name>[\w.-]+)",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {"close": TURN_END, "content": "text"},
    },
}
"""How transformers reads a turn back into a message; the reasoning tags stay in its content, where rewards look."""

# Ordinary prose, so that the merges suit word problems too. Written for this purpose.
_PROSE = """
Anna has three baskets of apples and each basket holds the same number of apples. How many apples does she have in total?
A train leaves the station in the morning and travels for several hours. How far does it travel if its speed does not change?
The shop sells pencils and notebooks. Each notebook costs more than a pencil. How much money does the customer pay for all of them?
There are students in the class. Half of them play football, and the rest of them read books after school every day.
If the farmer sells some of the eggs at the market for two dollars each, how much will he make every week?
Tom earned money by washing cars. He spent part of it on a book and saved what was left. How much did he save this month?
First find the number of boxes, then multiply by the price of one box. The total cost is the sum of the two amounts.
She gave her friend a quarter of the cookies and ate two more. What is the number of cookies that she still has now?
Let the unknown number be x. Then the equation says that twice x is equal to the sum of the other numbers, so we solve for x.
The answer is the difference between the first value and the second value. Therefore there are that many days in a year.
"""  # noqa: E501


def build_tokenizer(documents: Iterable[str], *, tools: bool = False) -> PreTrainedTokenizerFast:
    """Train the tokenizer on `documents` (conversation texts) and a page of ordinary prose. Deterministic.

    With `tools`, the tags of a call are tokens too, and its templates write and read calls.
    """
    added = TAGS + TOOL_TAGS if tools else TAGS
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    special = [AddedToken(t, special=True, normalized=False) for t in (PAD_TOKEN, TURN_START, TURN_END)]
    tags = [AddedToken(t, special=False, normalized=False) for t in added]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(added),
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator([*documents, *(_PROSE.splitlines() * 20)], trainer)
    core.add_tokens(tags)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD_TOKEN,
        eos_token=TURN_END,
        additional_special_tokens=[TURN_START],
        chat_template=AGENT_CHAT_TEMPLATE if tools else CHAT_TEMPLATE,
        response_template=RESPONSE_TEMPLATE if tools else None,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )
