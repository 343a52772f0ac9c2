"""The reasoning vocabulary: tokens that start as copies of ordinary ones, allowed only while the model thinks."""

from typing import TYPE_CHECKING, Any

from covey.model.reasoning_vocab.token_map import MAP_FILE, STARTS, TokenMap

if TYPE_CHECKING:
    from covey.model.reasoning_vocab.vocabulary import ReasoningVocabulary

__all__ = ["MAP_FILE", "STARTS", "ReasoningVocabulary", "TokenMap"]


def __getattr__(name: str) -> Any:
    if name == "ReasoningVocabulary":  # which needs torch, and the map does not
        from covey.model.reasoning_vocab.vocabulary import ReasoningVocabulary

        return ReasoningVocabulary
    raise AttributeError(name)
