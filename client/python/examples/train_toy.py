#!/usr/bin/env python3
"""A character model on the licence texts of this machine, in a minute on a CPU, with a gauge: what two lines add to a script.

    lossgauged sidecar &                 # then open http://127.0.0.1:9788
    python3 client/python/examples/train_toy.py --steps 300
"""

import argparse
import glob
import sys

import torch

import lossgauge

CONTEXT, WIDTH = 16, 96


class Model(torch.nn.Module):
    """Predicts a character from the ones before it: embeddings of the context through one hidden layer."""

    def __init__(self, characters):
        super().__init__()
        self.embed = torch.nn.Embedding(characters, WIDTH)
        self.mix = torch.nn.Conv1d(WIDTH, WIDTH, CONTEXT)
        self.head = torch.nn.Linear(WIDTH, characters)

    def forward(self, tokens):
        x = torch.nn.functional.pad(self.embed(tokens).transpose(1, 2), (CONTEXT - 1, 0))
        return self.head(torch.tanh(self.mix(x)).transpose(1, 2))


def read_text(paths):
    text = "".join(open(path, encoding="utf-8", errors="replace").read() for path in paths)
    if len(text) < 10000:
        sys.exit("train_toy: expected at least 10,000 characters of text, got {} from {}".format(len(text), paths or "no file"))
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", help="text to learn; default: the licences in /usr/share/common-licenses")
    parser.add_argument("--run", default="toy", help="name of the run (default %(default)s)")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--spike_at", type=int, default=0, help="step at which the head is multiplied by 4; 0: never")
    options = parser.parse_args()

    text = read_text(options.files or sorted(glob.glob("/usr/share/common-licenses/*")))
    characters = sorted(set(text))
    numbers = {character: number for number, character in enumerate(characters)}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = torch.tensor([numbers[character] for character in text])
    torch.manual_seed(1)
    model = Model(len(characters)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    bytes_of = bytes(len(character.encode()) for character in characters)
    with lossgauge.Gauge(run=options.run, vocab_size=len(characters), byte_table=bytes_of) as gauge:
        for step in range(options.steps):
            if options.spike_at and step == options.spike_at:
                with torch.no_grad():
                    model.head.weight *= 4
            start = torch.randint(0, len(data) - 129, (16,))
            tokens = torch.stack([data[i:i + 128] for i in start]).to(device)
            loss = gauge.cross_entropy(model(tokens), tokens, shift=True)
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            gauge.step(grad_norm=norm, lr=3e-3)
        print("step {}: loss {:.3f} nats".format(step, loss.item()))


if __name__ == "__main__":
    main()
