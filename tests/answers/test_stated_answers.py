"""Which answer a completion states: whole completions with gold answers, decided by hand.

A plain answer is found in any wording, and an answer that the completion does not state (it hedges, corrects itself, or
only thinks) is not. docs/grading.md has the policy.
"""

from __future__ import annotations

import pytest

from covey.answers import Tags, extract_prediction
from stated import NOT_RIGHT, RIGHT, stated_right

CHOICES = {
    RIGHT: [
        ("The picture is (C).", "C"),
        ("The correct option is B.", "B"),
        ("Therefore, (D)", "D"),
        ("Therefore, (D).", "D"),
        ("So (C) is correct.", "C"),
        ("Option (B) is correct.", "B"),
        ("Option B", "B"),
        (r"The correct choice is $\text{(B)}$.", "B"),
        ("I choose (B).", "B"),
        ("B is the correct answer.", "B"),
        ("(B) is the answer.", "B"),
        ("Hence the correct answer is option (E).", "E"),
        ("The answer is option E.", "E"),
        ("The answer is choice (E)", "E"),
        ("So the answer is (A) 12.", "A"),
        ("The answer is B) 12", "B"),
        ("Thus, the correct option is: (A)", "A"),
        (r"Therefore the answer is $\textbf{(B)}\ 12$", "B"),
        (r"The answer is $\mathrm{(B)}$", "B"),
        ("It must be (E).", "E"),
        ("The correct statement is (A).", "A"),
        ("We choose option D.", "D"),
        ("(A) and (B) are wrong, so (C).", "C"),
        ("(A) is wrong. (B) is correct.", "B"),
        ("The picture is (C).\n\nLet me know if you have questions!", "C"),
    ],
    NOT_RIGHT: [
        ("The correct option is B.", "C"),
        ("The figure is (C) or (D).", "C"),
        ("Either (A) or (B).", "B"),
        ("(A), (B), (C)", "C"),
        ("The answer is A or B", "A"),
        ("The answer is A or B", "B"),
        ("(A) and (B) are wrong, so (C).", "A"),
        ("(A) is wrong. (B) is correct.", "A"),
    ],
}
BOXES_AND_STATEMENTS = {
    RIGHT: [
        (r"\boxed{12}. So the answer is (C).", "C"),
        (r"We get $\boxed{5}$. Wait, I made a mistake. The answer is 6.", "6"),
        (r"The answer is $\boxed{5}$. I hope my answer is correct.", "5"),
        (r"\boxed{5}. The answer is clear.", "5"),
        (r"\boxed{5} This answer is consistent with 3 + 2.", "5"),
        (r"\boxed{5}. No, it should be 6.", "6"),
        (r"$\boxed{5}$ is the final answer: 3 of them are red and 2 blue.", "5"),
        (r"\boxed{A}. No, \boxed{B}", "B"),
        (r"\boxed{A}. No, (B)", "B"),
        (r"The answer is 4. Let me verify: \boxed{5}", "5"),
        ("\\boxed{5}\n\n#### Verification\n2 + 3 = 5, as the answer is correct.", "5"),
        ("#### Step 1: add\n3+4=7\n#### Step 2: done\nThe answer is 7", "7"),
        ("#### 72\nHope this helps!", "72"),
        ("#### Final Answer\n\n72", "72"),
        ("#### Final Answer: 72", "72"),
        ("#### (2, 4)", "(2,4)"),
        ("#### 1,200", "1200"),
        (r"\boxed{50}\%", "0.5"),
    ],
    NOT_RIGHT: [
        (r"\boxed{12}. So the answer is (C).", "12"),
        (r"We get $\boxed{5}$. Wait, I made a mistake. The answer is 6.", "5"),
        (r"\boxed{5}. No, it should be 6.", "5"),
        (r"\boxed{A}. No, \boxed{B}", "A"),
    ],
}
HEDGES_AND_CORRECTIONS = {
    RIGHT: [
        ("The answer is (A). No, (B)", "B"),
        ("The answer is 5. No, 6.", "6"),
        ("The answer is 5. Wait, actually it's 6.", "6"),
        ("The answer is 5. Wait, let me check: 2 + 3 = 5. Yes.", "5"),
        ("The answer is 5. There are 7 days in a week.", "5"),
        ("The answer is 5. (B) is wrong.", "5"),
        ("The answer is 5, since 5 + 2 = 7.", "5"),
        ("The answer is 42 because geometry proves it", "42"),
    ],
    NOT_RIGHT: [
        ("The answer is (A). No, (B)", "A"),
        ("The answer is 5. No, 6.", "5"),
        ("The answer is 5. Actually, 6.", "5"),
        ("the answer is 1, 2, 3, 4 or 5", "5"),
        ("the answer is 1, 2, 3, 4 or 5", "1"),
        ("The answer is 5 or 6 depending on x.", "5"),
        ("The answer is 5 or 6 depending on x.", "6"),
        ("The answer is either 5 or 6.", "5"),
        ("It is 5 or 6.", "6"),
        ("So it is either 5 or 6, I am not sure.", "6"),
        ("The answer is $5$ or $6$.", "5"),
        ("The answer is $5$ or 6.", "5"),
        ("The answer is $5$ or 6.", "6"),
        ("The answer is 5 apples or 6 apples.", "5"),
        ("The answer is 5 apples or 6 apples.", "6"),
        ("The answer is not 5.", "5"),
        ("The answer is not 5 but 6.", "5"),
        ("The answer isn't 5.", "5"),
        ("It is not 5.", "5"),
        ("The answer is more than 5.", "5"),
        ("The answer is greater than or equal to 5.", "5"),
        ("The answer is between 4 and 5.", "5"),
        ("The answer is at least 5.", "5"),
        ("The answer is one of 1, 2, 3, 4, 5.", "5"),
        ("The answer is less than $5$.", "5"),
        ("The answer is 5 or more.", "5"),
        ("The answer is 0 1 2 3 4 5 6 7 8 9.", "9"),
        ("The answer is 0, 1, 2, 3, 4, 5, 6, 7, 8, 9.", "9"),
        ("1 2 3 4 5", "5"),
        ("1, 2, 3, 4, 5", "5"),
        ("The answer is 1/2/3/4/5", "5"),
        (r"The answer is not \boxed{5}.", "5"),
    ],
}
MARKS = {
    RIGHT: [
        ("<answer>1</answer><answer>2</answer>", "2"),
        ("<answer>1</answer> and <answer>2</answer>", "1, 2"),
        (r"<answer>\boxed{5}</answer>", "5"),
        (r"<answer>\boxed{\boxed{5}}</answer>", "5"),
        (r"\boxed{<answer>5</answer>}", "5"),
        ("<answer><answer>5</answer></answer>", "5"),
        ("<answer>5 <answer>6</answer>", "6"),
        ("<answer>5</answer> <answer>6", "5"),
        (r"\boxed{5} and \boxed{6", "5"),
    ],
    NOT_RIGHT: [
        ("<answer>1</answer><answer>2</answer>", "1"),
        ("<answer>1</answer> or <answer>2</answer>", "2"),
        ("<answer>1</answer> or <answer>2</answer>", "1"),
        (r"<answer>\boxed{1}\boxed{2}\boxed{3}</answer>", "3"),
        (r"\boxed{1} \boxed{2} \boxed{3}", "3"),
        (r"\boxed{1}, \boxed{2}, \boxed{3}", "3"),
        ("<think>The answer is 5</think>", "5"),
        ("<think>The answer is \\boxed{5}</think>\n", "5"),
        ("<think>The answer is <answer>5</answer>", "5"),
        ("<think>5</think> Done.", "5"),
        ("<think>a</think><think>The answer is 5", "5"),
        ("<answer>5 <answer>6</answer>", "5"),
        (r"\boxed{5", "5"),
        (r"So it is \boxed{5", "5"),
    ],
}
SENTENCES = {
    RIGHT: [
        ("She has 42 apples.", "42"),
        ("So x = 5.", "5"),
        ("He pays 5 dollars per day, so 3 days cost $15.", "15"),
        ("3 + 4 = <<3+4=7>>7 apples", "7"),
        ("The answer is 2xy for all x and y.", "2xy"),
        (r"The answer is \frac{1}{2} in simplest form.", "1/2"),
        ("The answer is 5 in simplest form.", "5"),
        ("The answer is: $x = 5$, $y = 6$", "x=5,y=6"),
        ("The answer is given by $$5$$", "5"),
        ("The answer is as follows:\n\n5", "5"),
        ("The answer is therefore 5.", "5"),
        ("The answer would be 5 dollars.", "5"),
        ("Final answer: $5", "5"),
        ("The final answer is $5.00.", "5"),
        ("Final Answer\n\n5", "5"),
        ("So the final answer is 5x - 7y = 0", "5x-7y=0"),
        ("We obtain $5x - 7y + 11z + 4 = 0$.", "5x - 7y + 11z + 4 = 0"),
        ("Thus 12 is the answer.", "12"),
        ("The winner is Evelyn.", "Evelyn"),
        ("The function is even.", r"\text{even}"),
        ("Answer: no solution", r"\text{no solution}"),
        ("The answer is 1,234.", "1234"),
        ("The answer is 1 234.", "1234"),
        ("The total cost is $1,234.50.", "1234.5"),
        ("Answer choices: (A) 1 (B) 2 (C) 3\nThe picture is (C).", "C"),
        ("A: 12\nB: 13\nC: 14\nThe correct option is C.", "C"),
    ],
    NOT_RIGHT: [
        ("Therefore, x = 5 or x = 7.", "5"),
    ],
}
FURTHER = {
    RIGHT: [
        ("Thus the answer is C, i.e. 12.", "C"),
        ("Hence option (b) is correct.", "B"),
        ("The answer is 5 (five).", "5"),
        ("The answer is 2 (3x - 5).", "6x - 10"),
        ("The answer is roughly 3.14.", "3.14"),
        ("Answer - 5", "5"),
        ("=> 5", "5"),
        ("\u7b54\u6848\u662f5\u3002", "5"),
        ("\u041e\u0442\u0432\u0435\u0442: 5", "5"),
        ("<answer>Janet makes 18 dollars every day at the farmers' market.</answer>", "18"),
        ("The answer is 6... actually 5.", "5"),
        ("The answer is 5.\n\nNote: it is not 6.", "5"),
    ],
    NOT_RIGHT: [
        (r"\boxed{5} or maybe \boxed{6}", "6"),
        ("It's 5. Or 6.", "6"),
        ("The answer is 5 (or 6).", "5"),
        ("<answer>5\n6\n7\n8</answer>", "8"),
        ("<answer>5 maybe 6</answer>", "5"),
        ("The answer is 5 and also 6.", "6"),
    ],
}

GROUPS = {
    "further": FURTHER,
    "choices": CHOICES,
    "boxes and statements": BOXES_AND_STATEMENTS,
    "hedges and corrections": HEDGES_AND_CORRECTIONS,
    "marks": MARKS,
    "sentences": SENTENCES,
}

CASES = [
    pytest.param(text, gold, right, id=f"{name}: {text[-60:]!a}")
    for name, group in GROUPS.items()
    for right, pairs in group.items()
    for text, gold in pairs
]


@pytest.mark.parametrize(("completion", "gold", "right"), CASES)
def test_the_answer_that_a_completion_states(completion: str, gold: str, right: bool) -> None:
    assert stated_right(completion, gold) is right, extract_prediction(completion)


def test_long_thinking_that_is_not_closed_states_nothing() -> None:
    assert extract_prediction("<think>" + "x " * 60_000 + "The answer is 5") is None
    assert extract_prediction("<think>" + "x " * 60_000 + "</think>The answer is 5") == "5"


def test_statements_are_read_in_the_configured_tags() -> None:
    tags = Tags("reasoning", "result")
    assert extract_prediction("<reasoning>6</reasoning><result>The answer is 5.</result>", tags) == "5"
    assert extract_prediction("<result>1</result> or <result>2</result>", tags) == "1, 2"
