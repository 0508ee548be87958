"""The model and the samples of bench/dlrm_step.cpp, as PyTorch's; that file says what they are."""
import torch
from torch import nn

COUNTS, WORDS, FEATURES, ROWS_OF_A_WORD = 13, 26, 16, 100_000
VECTORS = WORDS + 1


def dense(*widths):
    layers = [layer for sizes in zip(widths, widths[1:]) for layer in (nn.Linear(*sizes), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class Dlrm(nn.Module):
    def __init__(self, low=-0.05):
        super().__init__()
        self.counts = dense(COUNTS, 512, 256, 64, FEATURES)
        self.rows = nn.Embedding(WORDS * ROWS_OF_A_WORD, FEATURES, sparse=True)
        first, second = torch.tril_indices(VECTORS, VECTORS, -1)
        self.pairs = first * VECTORS + second
        self.click = dense(FEATURES + len(self.pairs), 512, 256, 1)
        nn.init.uniform_(self.rows.weight, low, 0.05)

    def forward(self, x):
        first = self.counts(x[:, :COUNTS].float().log1p())
        vectors = torch.cat([first[:, None], self.rows(x[:, COUNTS:])], dim=1)
        products = (vectors @ vectors.mT).flatten(1).index_select(1, self.pairs)
        return self.click(torch.cat([first, products], dim=1))


def samples(count):
    counts = (torch.rand(count, COUNTS) ** 4 * 1000).long()
    words = (torch.rand(count, WORDS) ** 4 * ROWS_OF_A_WORD).long()
    clicks = (torch.rand(count, 1) < 0.25).float()
    return torch.cat([counts, words + torch.arange(WORDS) * ROWS_OF_A_WORD], dim=1), clicks


def batches(batch, rank, ranks, count):
    """Of `count` global batches the part of `rank`."""
    torch.manual_seed(1)
    x, clicks = samples(batch * ranks * count)
    parts = [slice(begin, begin + batch) for begin in range(rank * batch, len(x), batch * ranks)]
    return [(x[part].clone(), clicks[part].clone()) for part in parts]
