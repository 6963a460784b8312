"""Text: a small transformer from its configuration, and the sentences it is least sure of.

Opinions on meals and films, made here from words: good, bad or neither. Some say two things at once.
"""

import random
import sys

import torch
from torch import Tensor
from torch.utils.data import DataLoader

import bedl

try:
    from transformers import BertConfig, BertForSequenceClassification
except ImportError:
    print("skipped: needs transformers")
    sys.exit(0)

QUICK = "--quick" in sys.argv
THINGS = "soup bread service film plot music ending waiter actor dessert".split()
TONES = ["wonderful great lovely superb delightful", "awful bland dull dreadful boring", "short long local old early"]
WORDS = dict(zip(["good", "bad", "neither"], map(str.split, TONES), strict=True))
NAMES, PAD = list(WORDS), 0


def sentence(rng: random.Random, tone: str, other: str) -> str:
    """One thing, or two of which the second may be of another tone."""
    (one, two), how, too = rng.sample(THINGS, 2), rng.choice(WORDS[tone]), rng.choice(WORDS[other])
    short = rng.choice([f"the {one} was {how}", f"such a {how} {one}"])
    return short if tone == other and rng.random() < 0.5 else f"the {one} was {how} and the {two} {too}"


rng = random.Random(0)
pairs = [(tone := rng.choice(NAMES), rng.choice([tone] * 9 + NAMES)) for _ in range(800 if QUICK else 2000)]
texts = [sentence(rng, *pair) for pair in pairs]
labels = [NAMES.index(rng.choice(pair)) for pair in pairs]  # who says both may mean either
vocabulary = {word: i for i, word in enumerate(sorted(set(" ".join(texts).split())) + ["?"], 1)}


def tokens(lines: list[str]) -> dict[str, Tensor]:
    """Numbers of the words, and where there are words; an unknown one is "?"."""
    rows = [[vocabulary.get(word, vocabulary["?"]) for word in line.split()] for line in lines]
    ids = torch.tensor([row + [PAD] * (max(map(len, rows)) - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": (ids != PAD).long()}


def collate(items: list[tuple[str, int]]) -> dict[str, Tensor]:
    return {**tokens([text for text, _ in items]), "labels": torch.tensor([label for _, label in items])}


torch.manual_seed(0)
config = BertConfig(
    vocab_size=len(vocabulary) + 1, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
    max_position_embeddings=16, num_labels=3, initializer_range=0.2,
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip
net = bedl.bayesianize(BertForSequenceClassification(config))
method = bedl.BEDL(net, bedl.Dirichlet(3), bedl.PAC(strength=0.05))  # it reads the logits
loader = DataLoader(list(zip(texts, labels, strict=True)), batch_size=32, shuffle=True, collate_fn=collate)
bedl.fit(method, loader, epochs=3 if QUICK else 5, lr=0.003, compile=False)

plain = [sentence(rng, tone, tone) for tone in NAMES * 20]
mixed = [sentence(rng, tone, other) for tone in NAMES for other in NAMES if tone != other]
p, q = method.predict(tokens(plain)), method.predict(tokens(mixed))
print(f"accuracy, one tone: {(p.label == torch.arange(3).repeat(20)).float().mean():.3f}")
print(f"mean entropy, one tone: {p.entropy.mean():.2f}")
print(f"mean entropy, two tones: {q.entropy.mean():.2f}, of it noise {q.data.mean():.2f}")
everything = method.predict(tokens(plain + mixed))
for i in everything.entropy.argsort(descending=True)[:5].tolist():
    print(f"{everything.entropy[i]:.2f} nats, {NAMES[int(everything.label[i])]}: {(plain + mixed)[i]}")
