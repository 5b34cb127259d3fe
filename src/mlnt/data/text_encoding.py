"""Texts as numbers of words, or of characters where there are no words to speak of.

Axes: N texts, L words.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

PAD, UNKNOWN = 0, 1
LONGEST_TEXT = 512  # words, or characters
# Marks above, below and around letters, which Python takes for no part of a word: of Latin, Hebrew
# and Arabic, and whole blocks of the scripts of India, without their full stops.
_MARKS = (
    "\u0300-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7"
    "\u064b-\u065f\u0670\u06d6-\u06dc\u0900-\u0963\u0966-\u0dff"
)
WORD = re.compile(rf"[\w{_MARKS}]+(?:['’ʼ][\w{_MARKS}]+)*")
BARE_WORD = re.compile(r"\w+(?:['’ʼ]\w+)*")  # of runs from before marks were a part of words
# A character, then it and its neighbour: never across a space.
CHARACTERS = re.compile(r"(?=(\S))(?=(\S\S)?)")
# Thai, Lao, Tibetan, Burmese, Khmer, kana, Chinese characters: written without spaces.
_UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
FEWEST_SPACES = 1 / 8  # of the characters: Thai and Chinese cut into words have more
FEWEST_REPEATED = 1 / 3  # of the words: 2,000 headlines repeat 0.92 of them, 20 of them 0.35
MANY_UNREAD = 0.1  # of the texts, without a known word


@dataclass(frozen=True)
class TextEncoder:
    """Texts as word numbers [N, L], padded with 0 behind; 1 is a word not seen in training.

    The rarity of a word that is in n of N texts is 1 + log((1 + N) / (1 + n)). Where there are no
    words to speak of, characters and pairs of neighbours take their place.
    """

    words: tuple[str, ...]
    length: int
    rarities: tuple[float, ...] = ()  # of the words; runs from before there were any have none
    by_character: bool = False  # `words` are characters and pairs
    with_marks: bool = False
    kind = "text"

    @classmethod
    def fit(cls, texts: Sequence[str], at_least: int = 2, most: int = 30_000) -> "TextEncoder":
        counts, texts_with, lengths = _counted(texts, WORD)
        by_character = _has_no_words(texts, counts)
        if by_character:
            counts, texts_with, lengths = _counted(texts, CHARACTERS)
        kept = sorted(word for word, n in counts.most_common(most) if n >= at_least)
        # Long enough for 99 of 100 texts: one endless text must not set the length of all.
        length = int(np.quantile(lengths, 0.99)) if lengths else 1
        rarities = (1 + math.log((1 + len(texts)) / (1 + texts_with[word])) for word in kept)
        rounded = tuple(round(rarity, 4) for rarity in rarities)
        most_words = longest(by_character)
        return cls(tuple(kept), min(max(length, 1), most_words), rounded, by_character, True)

    @property
    def pattern(self) -> re.Pattern[str]:
        """What finds the words, or the characters and pairs, of a text in lower case."""
        return CHARACTERS if self.by_character else WORD if self.with_marks else BARE_WORD

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.length,)

    @property
    def vocabulary_size(self) -> int:
        return len(self.words) + 2

    def encode(self, texts: Sequence[str]) -> Tensor:
        number = {word: index + 2 for index, word in enumerate(self.words)}
        encoded = torch.full((len(texts), self.length), PAD, dtype=torch.long)
        for row, text in enumerate(texts):
            # A text without a single word is one unknown word, so that no row is all padding.
            words = _split(text, self.pattern)[: self.length] or [""]
            encoded[row, : len(words)] = torch.tensor([number.get(w, UNKNOWN) for w in words])
        return encoded

    def in_words(self) -> str:
        """What of the texts is looked at."""
        count = len(self.words)
        if self.by_character:
            what = f"{count:,} characters and pairs of them that occur twice or more"
            return f"{what}; words hardly repeat, or have no spaces between them"
        return f"{count:,} words that occur twice or more"

    def note_unread(self, encoded: Tensor, whose: str) -> Iterator[str]:
        """What to say of texts that hold nothing known, if there are many."""
        unread = int((encoded <= UNKNOWN).all(dim=1).sum())
        if unread and unread >= MANY_UNREAD * len(encoded):
            what = "character" if self.by_character else "word"
            verb = "holds" if unread == 1 else "hold"
            yield (
                f"{unread:,} of {len(encoded):,} {whose} {verb} no known {what}: "
                "all such texts get the same answer"
            )


def split_words(text: str) -> list[str]:
    """Lower-case words; an apostrophe inside a word belongs to it."""
    return _split(text, WORD)


def split_characters(text: str) -> list[str]:
    """Lower-case characters, each before the pair that it begins; white space parts them."""
    return _split(text, CHARACTERS)


def _split(text: str, pattern: re.Pattern[str]) -> list[str]:
    found = pattern.findall(text.lower())
    return [part for both in found for part in both if part] if pattern.groups else found


def longest(by_character: bool) -> int:
    """Of a text, in words; of characters each is there alone, and with the next."""
    return 2 * LONGEST_TEXT if by_character else LONGEST_TEXT


def _counted(
    texts: Sequence[str], pattern: re.Pattern[str]
) -> tuple[Counter[str], Counter[str], list[int]]:
    """How often each word occurs, in how many texts, and how many words each text has."""
    counts: Counter[str] = Counter()
    texts_with: Counter[str] = Counter()
    lengths = []
    for text in texts:
        words = _split(text, pattern)
        counts.update(words)
        texts_with.update(set(words))
        lengths.append(len(words))
    return counts, texts_with, lengths


def _has_no_words(texts: Sequence[str], counts: Counter[str]) -> bool:
    """Whether words hardly repeat, or the texts are in a script without spaces and have few."""
    written = sum(map(len, texts))
    spaces = written - sum(len("".join(text.split())) for text in texts)
    unspaced = sum(len(_UNSPACED.findall(text)) for text in texts)
    if unspaced > (written - spaces) / 2 and spaces < FEWEST_SPACES * written:
        return True
    repeated = sum(count for count in counts.values() if count > 1)
    return repeated < FEWEST_REPEATED * counts.total()
