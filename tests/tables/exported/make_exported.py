"""Writes small networks as torch.export saves them, and what eager PyTorch makes of them.

    python tests/tables/exported/make_exported.py [NAME...]      # torch 2.13, safetensors

For each network: NAME.pt2, of train(); NAME.eval.pt2, of eval(), where the two differ; and
NAME.safetensors, five steps of torch.optim.SGD (learning rate 0.05, on one thread) from the weights in the
file, with another batch than the file's example had:

    step0.input.0 ...  step4.input.1     the graph's inputs, in its order; step0.target ...
    step0.output.0 ...                   the outputs of the first step, in the graph's order
    loss                                 float64[5]
    gradient.NAME                        of the first step
    final.NAME                           parameters and buffers after five steps, as a state dict names them
    evaluation.output.0 ...              of the eval file (or the only one) for step 4's inputs, after five steps

with metadata "loss" (cross_entropy of the first output, its last dimension the classes, or mse), "rate",
"seed" (of torch.manual_seed before the first step), "inputs" and "outputs" (names, as JSON).
tests/unit/exported/test_exported_files.cpp trains by them.
"""

import json
import pathlib
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parents[2] / "python"))

from safetensors.torch import save_file  # noqa: E402
from tutti.export import export  # noqa: E402

EXAMPLE, BATCH, STEPS, RATE, SEED = 4, 6, 5, 0.05, 77


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.head = nn.Linear(6, 10), nn.Linear(10, 3)

    def forward(self, x):
        return self.head(F.gelu(self.hidden(x)))


class Cnn(nn.Module):
    """Batch norm, and an activation in place."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1, bias=False),
            nn.BatchNorm2d(6),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        )
        self.head = nn.Linear(6 * 4 * 4, 5)

    def forward(self, x):
        return self.head(torch.flatten(self.features(x), 1))


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.before(x)).split(c, 2)
        split = lambda y: y.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        rate = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(split(q), split(k), split(v), is_causal=True, dropout_p=rate)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        y = self.down(F.gelu(self.up(self.between(x)), approximate="tanh"))
        return x + F.dropout(y, self.dropout, self.training)


class Gpt(nn.Module):
    """Tied weights, dropout, attention; its length may be any number up to 16 too."""

    def __init__(self, tokens=17, width=8, length=16):
        super().__init__()
        self.token, self.place = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.block, self.norm = Block(width, 2, 0.1), nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens, bias=False)
        self.head.weight = self.token.weight

    def forward(self, ids):
        x = self.token(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.block(x)))


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(11, 5)
        self.cells = nn.LSTM(5, 6, 2, batch_first=True, dropout=0.2, bidirectional=True)
        self.head = nn.Linear(12, 4)

    def forward(self, ids):
        return self.head(self.cells(self.token(ids))[0][:, -1])


class Control(nn.Module):
    """torch.cond, a region without gradients, noise, a counter, a dictionary of outputs."""

    def __init__(self):
        super().__init__()
        self.hidden, self.head = nn.Linear(6, 6), nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.seen += x.shape[0]
        with torch.no_grad():
            mean = self.hidden(x).mean()
        h = torch.relu(self.hidden(x) + torch.randn_like(x) * 0.1 - mean)
        h = torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y - 1, (h,))
        return {"logits": self.head(h), "seen": self.seen.clone()}


class Autocast(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.head = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.head(F.relu(self.hidden(x)))
        return y.float()


class Frozen(nn.Module):
    """A base that is not trained, and a buffer that no state dict has."""

    def __init__(self):
        super().__init__()
        self.base, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.base.requires_grad_(False)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8), persistent=False)

    def forward(self, x):
        return self.head(F.relu(self.base(x)).detach() * self.scale)


class Dlrm(nn.Module):
    """Bags of embeddings, products of pairs; two inputs."""

    def __init__(self):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(20, 4, mode="sum") for _ in range(2))
        self.bottom = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4))
        self.top = nn.Sequential(nn.Linear(4 + 3, 8), nn.ReLU(), nn.Linear(8, 1))
        self.register_buffer("pairs", torch.tril_indices(3, 3, -1), persistent=False)

    def forward(self, dense, ids):
        x = self.bottom(dense)
        rows = torch.stack([x] + [bag(ids[:, i]) for i, bag in enumerate(self.bags)], 1)
        products = torch.bmm(rows, rows.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return torch.sigmoid(self.top(torch.cat([x, products], 1)))


class Named(nn.Module):
    """Inputs in a dictionary, one of them twice as long; a dictionary in a tuple comes out."""

    def __init__(self):
        super().__init__()
        self.words, self.numbers = nn.Embedding(9, 4), nn.Linear(3, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, batch, scale):
        x = self.words(batch["ids"]).mean(1) + self.numbers(batch["numbers"])
        x = x * scale.unsqueeze(1)
        return self.head(x), {"norm": x.norm(dim=1), "features": x}


class Mobile(nn.Module):
    """A convolution of each channel by itself, squeezed and excited; hard activations, a step around it."""

    def __init__(self, channels=6, wide=12):
        super().__init__()
        conv = lambda a, b, size, **more: [nn.Conv2d(a, b, size, bias=False, **more), nn.BatchNorm2d(b)]
        self.stem = nn.Sequential(*conv(3, channels, 3, stride=2, padding=1), nn.Hardswish())
        self.wide = nn.Sequential(
            *conv(channels, wide, 1), nn.ReLU6(), *conv(wide, wide, 3, padding=1, groups=wide), nn.Hardswish()
        )
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, 3, 1), nn.ReLU(), nn.Conv2d(3, wide, 1), nn.Hardsigmoid()
        )
        self.narrow = nn.Sequential(*conv(wide, channels, 1))
        self.head = nn.Linear(channels, 4)

    def forward(self, x):
        x = self.stem(x)
        y = self.wide(x)
        x = x + self.narrow(y * self.squeeze(y))
        return self.head(x.mean((2, 3)))


class Unet(nn.Module):
    """Down and up again, with what was there on the way down; a class for each pixel."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.norm, self.bottom = nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 3, padding=2, dilation=2)
        self.up, self.last = nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Conv2d(8 + 8, 4, 3, padding=1)
        self.classes = nn.Conv2d(4, 3, 1)

    def forward(self, x):
        whole = F.silu(self.first(x))
        half = F.leaky_relu(self.norm(self.second(F.max_pool2d(whole, 2))), 0.2)
        deep = F.silu(self.bottom(F.avg_pool2d(half, 2)))
        deep = F.interpolate(deep, scale_factor=2, mode="nearest") + half
        y = torch.cat([whole, self.up(deep), F.interpolate(half, scale_factor=2, mode="nearest")], 1)
        return self.classes(F.silu(self.last(y))).permute(0, 2, 3, 1)


class Vit(nn.Module):
    """Patches, a token of the class, places, and PyTorch's own attention of several heads."""

    def __init__(self, width=8, dropout=0.1):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.places = nn.Parameter(torch.randn(1, 5, width) * 0.02)
        self.before, self.between, self.norm = (nn.LayerNorm(width) for _ in range(3))
        self.attention = nn.MultiheadAttention(width, 2, dropout, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * width, width)
        )
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        y = self.before(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.mlp(self.between(x))
        return self.head(self.norm(x)[:, 0])


def normal(*shape):
    return lambda batch: torch.randn(batch, *shape)


def below(number, *shape):
    return lambda batch: torch.randint(0, number, (batch, *shape))


# name: module, arguments of a batch, target of a batch, loss, options of export
NETS = {
    "mlp": (Mlp, [normal(6)], below(3), "cross_entropy", {}),
    "cnn": (Cnn, [normal(3, 8, 8)], below(5), "cross_entropy", {}),
    "gpt": (Gpt, [below(17, 8)], below(17, 8), "cross_entropy", {"dynamic": {"ids": {1: "length"}}}),
    "lstm": (Lstm, [below(11, 5)], below(4), "cross_entropy", {}),
    "control": (Control, [normal(6)], below(3), "cross_entropy", {}),
    "autocast": (Autocast, [normal(6)], below(3), "cross_entropy", {}),
    "frozen": (Frozen, [normal(6)], below(3), "cross_entropy", {}),
    "dlrm": (Dlrm, [normal(5), below(20, 2, 3)], lambda b: torch.rand(b, 1), "mse", {}),
    "named": (
        Named,
        [lambda b: {"ids": below(9, 4)(b), "numbers": normal(3)(b)}, lambda b: torch.rand(b) + 0.5],
        below(3),
        "cross_entropy",
        {},
    ),
    "mobile": (Mobile, [normal(3, 8, 8)], below(4), "cross_entropy", {}),
    "unet": (Unet, [normal(2, 8, 8)], below(3, 8, 8), "cross_entropy", {}),
    "vit": (Vit, [normal(3, 8, 8)], below(4), "cross_entropy", {}),
}
NAMES = {  # of inputs and outputs, where they are not x and output
    "gpt": (["ids"], ["output"]),
    "lstm": (["ids"], ["output"]),
    "control": (["x"], ["logits", "seen"]),
    "dlrm": (["dense", "ids"], ["output"]),
    "named": (["batch.ids", "batch.numbers", "scale"], ["0", "1.norm", "1.features"]),
}
DIFFERS_IN_EVALUATION = ("cnn", "gpt", "lstm", "mobile", "vit")


def loss_of(kind, output, target):
    if kind == "mse":
        return F.mse_loss(output, target)
    return F.cross_entropy(output.flatten(0, -2), target.flatten())


def make(name):
    net, arguments, target, kind, options = NETS[name]
    torch.manual_seed(20261129)
    module = net().train()
    args = lambda batch: tuple(argument(batch) for argument in arguments)
    eval_out = FOLDER / f"{name}.eval.pt2" if name in DIFFERS_IN_EVALUATION else False
    print(export(module, args(EXAMPLE), FOLDER / f"{name}.pt2", eval_out=eval_out, **options))

    tensors = {}
    data = [(args(BATCH), target(BATCH)) for _ in range(STEPS)]
    for step, (given, wanted) in enumerate(data):
        for i, tensor in enumerate(pytree.tree_leaves(given)):
            tensors[f"step{step}.input.{i}"] = tensor.clone()
        tensors[f"step{step}.target"] = wanted
    sgd = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=RATE)
    losses = []
    torch.manual_seed(SEED)
    for step, (given, wanted) in enumerate(data):
        sgd.zero_grad()
        outputs = pytree.tree_leaves(module(*given))
        loss = loss_of(kind, outputs[0], wanted)
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            for i, output in enumerate(outputs):
                tensors[f"step0.output.{i}"] = output.detach().contiguous().clone()
            for key, parameter in module.named_parameters():
                if parameter.grad is not None:
                    tensors[f"gradient.{key}"] = parameter.grad.clone()
        sgd.step()
    for key, tensor in module.state_dict().items():
        tensors[f"final.{key}"] = tensor.clone()
    if eval_out or name not in ("control",):  # whose evaluation draws numbers
        module.eval()
        with torch.no_grad():
            for i, output in enumerate(pytree.tree_leaves(module(*data[-1][0]))):
                tensors[f"evaluation.output.{i}"] = output.contiguous().clone()
    tensors["loss"] = torch.tensor(losses, dtype=torch.float64)
    inputs, outputs = NAMES.get(name, (["x"], ["output"]))
    metadata = {"loss": kind, "rate": str(RATE), "seed": str(SEED), "torch": torch.__version__}
    metadata |= {"inputs": json.dumps(inputs), "outputs": json.dumps(outputs)}
    save_file(tensors, FOLDER / f"{name}.safetensors", metadata)
    print(name, " ".join(f"{loss:.6f}" for loss in losses))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for chosen in sys.argv[1:] or NETS:
        make(chosen)
