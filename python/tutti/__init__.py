"""tutti: one order of summation, from threads to clusters. PyTorch programs want `tutti.torch`."""

from importlib import metadata


def __getattr__(name):
    if name == "__version__":
        try:
            return metadata.version("tutti")
        except metadata.PackageNotFoundError as error:
            raise AttributeError("tutti is not installed, so that it has no version") from error
    raise AttributeError(f"module 'tutti' has no attribute {name!r}")
