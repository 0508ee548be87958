"""Unpacks the drawings that the project brings: all of them, and a tenth.

    unpack_drawings.py FROM ALL FEW    FROM/*.npy.gz -> ALL/*.npy, and of each the first 300 rows -> FEW/*.npy

A process that reads them packed takes 0.15 s of a core more.
"""

import gzip
import pathlib
import sys

ROWS, FEW_ROWS, ROW_BYTES = 3000, 300, 784


def main(packed, *folders):
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(packed.glob("*.npy.gz")):
        content = gzip.decompress(file.read_bytes())
        begin = len(content) - ROWS * ROW_BYTES
        shape, few_shape = (f"({rows}, {ROW_BYTES})".encode() for rows in (ROWS, FEW_ROWS))
        if shape not in content[:begin]:
            raise SystemExit(f"{file}: expected {ROWS} rows of {ROW_BYTES} bytes")
        # The header keeps its length: blanks stand before its last byte.
        header = content[:begin].replace(shape, few_shape)
        header = header[:-1] + b" " * (begin - len(header)) + header[-1:]
        (folders[0] / file.stem).write_bytes(content)
        (folders[1] / file.stem).write_bytes(header + content[begin : begin + FEW_ROWS * ROW_BYTES])


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:]))
