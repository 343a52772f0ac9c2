"""Log-probs of completions under the policy, with shared prompts and the reasoning vocabulary."""
