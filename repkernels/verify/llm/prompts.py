"""What the kit asks: passages of a text that every Python has, or random tokens."""

from collections.abc import Callable
from pydoc_data.topics import topics
from typing import Any

from repkernels.philox import words
from repkernels.verify.llm.batching import Prompt


def prompts(tokenizer: Any, vocabulary: int) -> Callable[[int, int], Prompt]:
    """`prompt(length, number)`: passages of `text` from different places; random ids without a tokenizer."""
    if tokenizer is None:
        return lambda length, number: [int(w) % vocabulary for w in words(number, 0, length)]
    ids = tokenizer(text()[:200_000], add_special_tokens=False)["input_ids"]

    def prompt(length: int, number: int) -> Prompt:
        start = number * 151 % (len(ids) - length)
        return ids[start : start + length]

    return prompt


def text() -> str:
    """English that every Python has: the language's own documentation, without its title lines."""
    pages = [topics[name] for name in sorted(topics)]
    lines = [line.strip() for page in pages for line in page.splitlines() if set(line.strip()) - set('*=-~^"+')]
    return "\n".join(line for line in lines if len(line) > 40)
