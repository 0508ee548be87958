"""tutti: one order of summation, from threads to clusters. PyTorch programs want `tutti.torch`."""

from importlib import metadata


def __getattr__(name):
    if name == "__version__":
        return metadata.version("tutti")
    raise AttributeError(f"module 'tutti' has no attribute {name!r}")
