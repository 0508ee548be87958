"""What a reader of the pages has and the checkout has not: photos and a table, written where sessions run."""

import struct
import zlib

SIDE = 48  # pixels


def picture(kind, number):
    """A PNG: upright stripes for one kind, lying ones for the other, each photo with widths of its own."""
    width = 4 + number % 5
    rows = b""
    for y in range(SIDE):
        pixels = ((x if kind == "ants" else y) // width % 2 * 200 + 3 * number for x in range(SIDE))
        rows += b"\0" + b"".join(bytes((p, p // 2, 255 - p)) for p in pixels)

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def write(folder):
    for part, count in (("photos/train", 12), ("photos/val", 4)):
        for kind in ("ants", "bees"):
            place = folder / part / kind
            place.mkdir(parents=True)
            for number in range(count):
                (place / f"{number}.png").write_bytes(picture(kind, number))
    (folder / "new").mkdir()
    for number, kind in enumerate(("ants", "bees", "bees")):
        (folder / "new" / f"{number}.png").write_bytes(picture(kind, 5 + number))
    lines = ["median_income,total_rooms,median_house_value"]
    lines += [f"{1 + i % 13 * 0.7:.1f},{400 + i % 37 * 60},{20_000 * (1 + i % 13) + 10 * (i % 37)}" for i in range(400)]
    (folder / "housing.csv").write_text("\n".join(lines) + "\n")
