#!/usr/bin/env python3
"""Cuts a small Quick, Draw! folder out of a large one.

usage: cut_quickdraw.py SOURCE DESTINATION [--rows N] [--classes NAME ...]

SOURCE holds <class>.npy files as Google publishes them (uint8 [rows, 784], .npy version 1.0).
DESTINATION gets <class>.npy.gz with the first N rows of each (default 3000: 2,500 to train, and the
last sixth, 500, to test). Equal input gives equal bytes: the gzip headers hold no name and no time.
"""

import argparse
import ast
import gzip
import io
import pathlib
import struct
import sys

PIXELS = 784


def read_rows(path, rows):
    """The first `rows` doodles of a .npy file, as bytes."""
    with open(path, "rb") as file:
        magic = file.read(8)
        if magic != b"\x93NUMPY\x01\x00":
            sys.exit(f"{path}: got {magic!r}, expected a .npy file of version 1.0")
        (length,) = struct.unpack("<H", file.read(2))
        header = ast.literal_eval(file.read(length).decode("latin1"))
        shape = header["shape"]
        if header["descr"] != "|u1" or header["fortran_order"] or shape[1:] != (PIXELS,):
            sys.exit(f"{path}: got {header}, expected uint8 [rows, {PIXELS}]")
        if shape[0] < rows:
            sys.exit(f"{path}: got {shape[0]} doodles, expected {rows} or more")
        data = file.read(rows * PIXELS)
        if len(data) != rows * PIXELS:
            sys.exit(f"{path}: truncated: got {len(data)} bytes, expected {rows * PIXELS}")
        return data


def npy(data, rows):
    """A .npy file of version 1.0, its data from a 64-byte boundary on."""
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({rows}, {PIXELS}), }}"
    header += " " * (-(10 + len(header) + 1) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("destination", type=pathlib.Path)
    parser.add_argument("--rows", type=int, default=3000, help="doodles per class")
    parser.add_argument("--classes", nargs="*", help="default: every class in SOURCE")
    options = parser.parse_args()

    classes = options.classes or sorted(path.stem for path in options.source.glob("*.npy"))
    if not classes:
        sys.exit(f"{options.source}: no .npy files")
    options.destination.mkdir(parents=True, exist_ok=True)
    for name in classes:
        content = npy(read_rows(options.source / f"{name}.npy", options.rows), options.rows)
        packed = io.BytesIO()
        with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=packed, mtime=0) as out:
            out.write(content)
        target = options.destination / f"{name}.npy.gz"
        target.write_bytes(packed.getvalue())
        print(f"{target}: {options.rows} doodles, {len(packed.getvalue()):,} bytes")


if __name__ == "__main__":
    main()
