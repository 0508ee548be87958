"""A network for doodles, as one writes it in PyTorch. doodles.pt2 and doodles.eval.pt2 beside it were made so:

    python -m tutti.export doodles:Doodles --input float32[8,1,28,28] --out doodles.pt2
"""

from torch import nn


class Doodles(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.features = nn.Sequential(
            self.halve(1, 8), self.halve(8, 16), self.halve(16, 16), nn.Flatten()
        )
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(16 * 4 * 4, classes))

    @staticmethod
    def halve(inputs, outputs):
        conv = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU())

    def forward(self, x):
        return self.head(self.features(x))
