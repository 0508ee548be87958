"""tutti: one order of summation, from threads to clusters. PyTorch programs want `tutti.torch`."""

__version__ = "0.1.0"
