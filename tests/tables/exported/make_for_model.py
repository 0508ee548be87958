"""Writes the exported networks that tests of Model and of the command line train.

    python tests/tables/exported/make_for_model.py      # torch 2.13

pictures.pt2, pictures.eval.pt2: images [1, 12, 12] to two classes, with batch norm and dropout.
certain.pt2, certain.eval.pt2: the same without dropout, so that it is cut into stages.
in_place.pt2: changes its input; clamped.pt2: a parameter of its own.
gpt2.pt2: GPT-2 of two small layers, its weights [in, out] as transformers' Conv1D has them, its head tied.
given_back.pt2: changes its inputs, of which no schema of an operator says that it has them.
blocks.pt2: words [10] to words, a GPT of three blocks with a mask that all of them read, tied
words, and no dropout: it is cut into stages.
dropped.pt2, dropped.eval.pt2: words [10] to words, whose blocks draw random numbers in each of the ways in which
networks do; it is cut into stages.
drawn.pt2: noise alone, each draw an output.
both.pt2: the network of tests/support/two_outputs.h, with two inputs and a dictionary of outputs.
tests/unit/train/test_exported_model.cpp, test_lora.cpp, tests/unit/exported and tests/jobs/command_line/test_exported.cpp use them.
"""

import pathlib
import sys

import torch
import torch.nn.functional as F
from torch import nn

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parents[2] / "python"))

from tutti.export import export  # noqa: E402


class Pictures(nn.Module):
    def __init__(self, drop=0.25):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(drop)
        self.head = nn.Linear(4 * 36, 2)

    def forward(self, x):
        x = torch.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        return self.head(self.drop(torch.flatten(x, 1)))


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.place_in, self.both = nn.Linear(4, 8), nn.Linear(10, 6)
        self.kind, self.height = nn.Linear(6, 3), nn.Linear(6, 1)

    def forward(self, place, size):
        x = torch.relu(self.place_in(place))
        x = torch.relu(self.both(torch.cat((x, size), 1)))
        return {"kind": self.kind(x), "height": self.height(x)}


class InPlace(nn.Module):
    """Changes what it is given, through a view; and makes a tensor on a device, and asks for a type."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x.view(-1, 2, 3).mul_(0.5)
        return self.head(x + torch.arange(6.0, device=x.device)).float()


class Clamped(nn.Module):
    """Writes to a parameter by itself."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        with torch.no_grad():
            self.head.weight.clamp_(-1, 1)
        return self.head(x)


class Conv1D(nn.Module):
    """As in transformers."""

    def __init__(self, out, width):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(width, out) * 0.2), nn.Parameter(torch.zeros(out))

    def forward(self, x):
        y = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return y.view(x.size()[:-1] + (self.weight.shape[1],))


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = Conv1D(3 * width, width), Conv1D(width, width)

    def forward(self, x):
        b, t, c = x.shape
        split = lambda y: y.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        q, k, v = self.c_attn(x).split(c, 2)
        y = F.scaled_dot_product_attention(split(q), split(k), split(v), is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(b, t, c))


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_fc, self.c_proj = Conv1D(4 * width, width), Conv1D(width, 4 * width)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.mlp = Attention(width, heads), Mlp(width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt2(nn.Module):
    def __init__(self, tokens=17, width=8, length=8, layers=2, heads=2):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.h = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.h:
            x = layer(x)
        return self.lm_head(self.ln_f(x))


class GivenBack(nn.Module):
    """Changes in place what operators and regions give back of its inputs: the inputs themselves."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, a, b, c, d, e, f):
        F.dropout(a, 0.5, training=False).mul_(2)
        b.type_as(a).add_(1)
        with torch.no_grad():
            view = c.view(-1)
        view.mul_(3)
        torch.einsum("ij->ji", d).mul_(5)
        with torch.no_grad():
            torch.atleast_2d(e).neg_()
        torch.unsafe_split(f, 6, 1)[0].add_(7)
        return self.head(a + b + c + d + e + f)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x, mask):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.ln_1(x)).split(c, 2))
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(nn.functional.gelu(self.up(self.ln_2(x))))


class Blocks(nn.Module):
    def __init__(self, tokens=17, width=8, length=10):
        super().__init__()
        self.token, self.place = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.h = nn.ModuleList(Block(width, 2) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)
        self.head.weight = self.token.weight

    def forward(self, ids):
        t = ids.shape[1]
        mask = torch.full((t, t), float("-inf"), device=ids.device).triu(1)
        x = self.token(ids) + self.place(torch.arange(t, device=ids.device))
        for block in self.h:
            x = block(x, mask)
        return self.head(self.norm(x))


class DroppedBlock(nn.Module):
    """Dropout in attention and beside it, in place too; whole samples that are left out."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.drop, self.again = nn.Dropout(0.2), nn.Dropout(0.1, inplace=True)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm(x)).split(c, 2))
        rate = 0.3 if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=rate)
        y = self.drop(self.out(y.transpose(1, 2).reshape(b, t, c)))
        if self.training:
            y = y * y.new_empty(b, 1, 1).bernoulli_(0.8)
        return self.again(x + y)


class Noise(nn.Module):
    """In a region without gradients, in a branch, and as a network's own."""

    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        if not self.training:
            return x * self.scale
        with torch.no_grad():
            noise = torch.randn_like(x) * 0.1
        x = torch.cond(x.sum() > 0, lambda y: F.dropout(y, 0.2), lambda y: y + torch.rand_like(y) * 0.1, (x,))
        return (x + noise) * self.scale + torch.normal(0.0, torch.full_like(x, 0.01))


class Dropped(nn.Module):
    def __init__(self, tokens=17, width=8, length=10):
        super().__init__()
        self.token, self.place = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.drop = nn.Dropout(0.1)
        self.h = nn.ModuleList(DroppedBlock(width, 2) for _ in range(3))
        self.noise = Noise(width)
        self.cells = nn.LSTM(width, width, 2, batch_first=True, dropout=0.2)
        self.bent, self.few = nn.RReLU(0.1, 0.3), nn.Dropout1d(0.2)
        self.head = nn.Linear(width, tokens, bias=False)
        self.head.weight = self.token.weight

    def forward(self, ids):
        x = self.drop(self.token(ids) + self.place(torch.arange(ids.shape[1], device=ids.device)))
        for block in self.h:
            x = block(x)
        x = self.cells(self.noise(x))[0]
        return self.head(self.few(self.bent(x)))


class Drawn(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Parameter(torch.ones(()))

    def forward(self, x):
        first, second = torch.rand_like(x), torch.rand_like(x)
        with torch.no_grad():
            within, again = torch.rand_like(x), torch.rand_like(x)
        y = x * self.one
        branch = torch.cond(x.sum() > 0, lambda z: z * torch.rand_like(z), lambda z: z * torch.rand_like(z), (y,))
        return {"first": first, "second": second, "within": within, "again": again, "branch": branch}


torch.manual_seed(51)
print(export(Pictures(), torch.randn(4, 1, 12, 12), FOLDER / "pictures.pt2"))
print(export(Both(), (torch.randn(4, 4), torch.randn(4, 2)), FOLDER / "both.pt2", eval_out=False))
print(export(InPlace(), torch.randn(4, 6), FOLDER / "in_place.pt2", eval_out=False))
print(export(Clamped(), torch.randn(4, 4), FOLDER / "clamped.pt2", eval_out=False))
print(export(Gpt2(), torch.randint(0, 17, (4, 8)), FOLDER / "gpt2.pt2", eval_out=False))
print(export(GivenBack(), tuple(torch.randn(4, 6) for _ in range(6)), FOLDER / "given_back.pt2", eval_out=False))
torch.manual_seed(51)
print(export(Blocks(), torch.randint(17, (4, 10)), FOLDER / "blocks.pt2", eval_out=False))
print(export(Pictures(0.0), torch.randn(4, 1, 12, 12), FOLDER / "certain.pt2"))
torch.manual_seed(51)
print(export(Dropped(), torch.randint(17, (4, 10)), FOLDER / "dropped.pt2"))
print(export(Drawn(), torch.randn(4, 3), FOLDER / "drawn.pt2", eval_out=False))
