"""Free text as numbers: hashed TF-IDF, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

BUCKETS = 64  # features of a column of free text; words that share a bucket count as one
_WORD = r"[^\pL]+"  # what stands between words


def words_of(texts: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """The words of texts in lower case, and the text that each is from. shapes: (words,)

    Example:
        >>> rows, words = words_of(pa.array(["A fine house!", None, "fine"]))
        >>> rows.tolist(), words.to_pylist()
        ([0, 0, 0, 2], ['a', 'fine', 'house', 'fine'])
    """
    lists = pc.split_pattern_regex(pc.utf8_lower(texts), _WORD)
    rows, words = pc.list_parent_indices(lists), pc.list_flatten(lists)
    some = pc.greater(pc.utf8_length(words), 0)
    return rows.filter(some).to_numpy(zero_copy_only=False), words.filter(some)


def bucket_counts(texts: pa.Array, buckets: int = BUCKETS) -> np.ndarray:
    """How many words of each text fall into each bucket. shape: (n, buckets)"""
    rows, words = words_of(texts)
    coded = words.dictionary_encode()
    # CRC-32 is the same on all machines, other than Python's own hash
    bucket = np.array([crc32(word.encode()) % buckets for word in coded.dictionary.to_pylist()], dtype=np.int64)
    counts = np.zeros((len(texts), buckets), dtype=np.float32)
    np.add.at(counts, (rows, bucket[coded.indices.to_numpy(zero_copy_only=False)]), 1)
    return counts


@dataclass
class WordCounts:
    """In how many texts each bucket has a word, batch by batch."""

    texts: int = 0
    found: np.ndarray = field(default_factory=lambda: np.zeros(BUCKETS, dtype=np.int64))

    def see(self, texts: pa.Array) -> None:
        """Counts the next rows."""
        self.texts += len(texts) - texts.null_count
        self.found += (bucket_counts(texts) > 0).sum(0)

    def idf(self) -> list[float]:
        """Inverse document frequencies, as scikit-learn smooths them: log((1 + n)/(1 + found)) + 1."""
        return (np.log((1 + self.texts) / (1 + self.found)) + 1).tolist()
