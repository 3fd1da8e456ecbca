"""Tokens as text, piece by piece, up to a stop string. Streamed pieces add up to the text of the whole."""

from collections.abc import Sequence
from typing import Any

_UNFINISHED = "\ufffd"
_LONGEST = 4  # bytes of a character, and so tokens that may be one in the making


class Text:
    """The text of one answer: `add` each token, then `finish`; both give what can be shown by now.

    stopped: whether a stop string came; it and what follows it are no part of the text.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str] = ()) -> None:
        self.tokenizer, self.stops = tokenizer, tuple(stops)
        self.stopped = False
        self._ids: list[int] = []
        self._from = self._shown = 0
        self._held = ""

    def add(self, token: int) -> str:
        if self.stopped:
            return ""
        self._ids.append(token)
        return self._released(self._decoded(last=False), last=False)

    def finish(self) -> str:
        """What is left, when no token will follow."""
        return "" if self.stopped else self._released(self._decoded(last=True), last=True)

    def _decoded(self, last: bool) -> str:
        """The text of the tokens since the last ones that ended with a whole character, seen after those before."""
        before = self._decode(self._ids[self._from : self._shown])
        now = self._decode(self._ids[self._from :])
        unfinished = now.endswith(_UNFINISHED) and len(self._ids) - self._shown < _LONGEST
        if not last and (unfinished or len(now) <= len(before)):
            return ""
        self._from, self._shown = self._shown, len(self._ids)
        return now[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        found: str = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return found

    def _released(self, piece: str, last: bool) -> str:
        text = self._held + piece
        places = [place for stop in self.stops if (place := text.find(stop)) >= 0]
        if places:
            self.stopped, self._held = True, ""
            return text[: min(places)]
        kept = 0 if last else max((_beginning(text, stop) for stop in self.stops), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]


def _beginning(text: str, stop: str) -> int:
    """How much of the end of the text is a beginning of the stop string."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
