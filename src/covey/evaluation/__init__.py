"""Evaluation: estimators (pure) and the evaluation run. Never imports training."""
