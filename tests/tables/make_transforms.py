#!/usr/bin/env python3
"""Writes transforms.json beside itself: what torchvision makes of small pictures.

  python tests/tables/make_transforms.py        # torch 2.14, torchvision 0.29, Pillow 13, AVX2 or better

Pictures are drawn here: gradients, an edge and noise. "photos" are encoded ones with what decoding
them as RGB gives (torchvision; Pillow's convert("RGB") where torchvision does not take the file);
"cases" name an operation, what is drawn already, and its result. Bytes are in hexadecimal; a
tolerance is the largest difference of a byte, `differing` the share of pixels that may be any other:
the nearest of two equally near ones. tests/unit/data_transforms/test_tables.cpp reads them.
"""

import io
import json
import pathlib
import struct
import zlib

import numpy as np
import torch
from PIL import Image
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

FILE = pathlib.Path(__file__).with_name("transforms.json")


def picture(height, width, channels=3):
    rng = np.random.default_rng(height * 1000 + width)
    y, x = np.mgrid[0:height, 0:width]
    red = 255 * x / (width - 1)
    green = 255 * y / (height - 1)
    blue = np.where(x * height > y * width, 230, 20)
    noise = rng.integers(-12, 13, (height, width, 3))
    rgb = np.clip(np.stack([red, green, blue], -1) + noise, 0, 255).astype(np.uint8)
    return rgb if channels == 3 else rgb[..., :1]


def tensor_of(pixels):
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def described(tensor):
    return {"shape": list(tensor.shape), "bytes": tensor.contiguous().numpy().tobytes().hex()}


def saved(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def png16(pixels, color_type):
    """A PNG of 16 bits a channel, which Pillow does not write as RGB: the low bytes are noise."""
    height, width, channels = pixels.shape
    low = np.random.default_rng(16).integers(0, 256, pixels.shape)
    wide = (pixels.astype(np.uint16) << 8 | low.astype(np.uint16)).astype(">u2")
    rows = b"".join(b"\0" + wide[y].tobytes() for y in range(height))

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 16, color_type, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def photos():
    rgb = Image.fromarray(picture(13, 19))
    gray = rgb.convert("L")
    alpha = rgb.copy()
    alpha.putalpha(gray)
    cmyk = Image.fromarray(np.concatenate([picture(13, 19), picture(13, 19)[..., 1:2] // 2], -1), "CMYK")
    exif = Image.Exif()
    exif[0x0112] = 6
    yield "jpeg 4:4:4", saved(rgb, "JPEG", quality=90, subsampling=0)
    yield "jpeg 4:2:2", saved(rgb, "JPEG", quality=90, subsampling=1)
    yield "jpeg 4:2:0", saved(rgb, "JPEG", quality=90, subsampling=2)
    yield "jpeg progressive", saved(rgb, "JPEG", quality=90, progressive=True)
    yield "jpeg with restart markers", saved(rgb, "JPEG", quality=90, restart_marker_blocks=1)
    yield "jpeg gray", saved(gray, "JPEG", quality=90)
    yield "jpeg cmyk", saved(cmyk, "JPEG", quality=90)
    yield "jpeg turned by exif", saved(rgb, "JPEG", quality=90, exif=exif)
    yield "png rgb", saved(rgb, "PNG")
    yield "png gray", saved(gray, "PNG")
    yield "png black and white", saved(gray.convert("1"), "PNG")
    yield "png palette", saved(rgb.quantize(11), "PNG")
    yield "png palette, one colour transparent", saved(rgb.quantize(11), "PNG", transparency=3)
    yield "png rgba", saved(alpha, "PNG")
    yield "png gray and alpha", saved(alpha.convert("LA"), "PNG")
    yield "png 16 bit rgb", png16(picture(13, 19), 2)
    yield "webp", saved(rgb, "WEBP", quality=80)
    yield "webp lossless with alpha", saved(alpha, "WEBP", lossless=True)


def decoded(bytes_, apply_exif=False):
    by_pillow = tensor_of(np.array(Image.open(io.BytesIO(bytes_)).convert("RGB")))
    data = torch.frombuffer(bytearray(bytes_), dtype=torch.uint8)
    try:
        by_torch = decode_image(data, mode=ImageReadMode.RGB, apply_exif_orientation=apply_exif)
    except RuntimeError as error:
        return by_pillow, f"Pillow ({str(error)[:60]})"
    if by_torch.dtype == torch.uint8 and by_torch.shape == by_pillow.shape:
        assert apply_exif or torch.equal(by_torch, by_pillow)
    return (by_torch, "torchvision") if by_torch.dtype == torch.uint8 else (by_pillow, "Pillow")


def photo_cases():
    for name, bytes_ in photos():
        pixels, source = decoded(bytes_)
        yield {"name": name, "photo": bytes_.hex(), "by": source, "rgb": described(pixels)}


def resize_cases(image):
    for size in ([8], [20], [7, 30], [25, 6], [17, 23], [2, 3]):
        yield {"op": "resize", "args": size, "out": described(F.resize(image, size))}
    for top, left, height, width in ((3, 5, 12, 15), (0, 0, 4, 23), (14, 20, 3, 3)):
        out = F.resized_crop(image, top, left, height, width, [8, 9])
        yield {"op": "resized_crop", "args": [top, left, height, width, 8, 9], "out": described(out)}
    for size in ([8, 8], [17, 10], [20, 26], [20, 8], [4, 25]):
        yield {"op": "center_crop", "args": size, "out": described(F.center_crop(image, size))}


AUGMENTATIONS = {
    "ShearX": [0.09, -0.3],
    "ShearY": [0.21, -0.15],
    "TranslateX": [3.7, -4.2],
    "TranslateY": [4.1, -2.9],
    "Rotate": [9.0, -30.0],
    "Brightness": [0.27, -0.9],
    "Color": [0.63, -0.45],
    "Contrast": [0.9, -0.36],
    "Sharpness": [0.9, -0.54],
    "Posterize": [4, 7],
    "Solarize": [0.7, 0.25],
    "AutoContrast": [0],
    "Equalize": [0],
}
# Torch fuses multiply and add in some places and adds a mean up in another order.
WITHIN_ONE = ("Brightness", "Color", "Contrast", "Sharpness")
GEOMETRIC = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")


def augment_cases(image):
    augment = v2.RandAugment()
    for number, (name, magnitudes) in enumerate(AUGMENTATIONS.items(), 1):
        for magnitude in magnitudes:
            out = augment._apply_image_or_video_transform(
                image, name, magnitude, interpolation=augment.interpolation, fill=augment._fill
            )
            yield {
                "op": "augment",
                "args": [number, magnitude],
                "tolerance": 1 if name in WITHIN_ONE else 0,
                "differing": 0.02 if name in GEOMETRIC else 0,
                "out": described(out),
            }


def hue_cases(image):
    for turn in (0.1, -0.25, 0.5, -0.5):
        yield {"op": "hue", "args": [turn], "tolerance": 1, "out": described(F.adjust_hue(image, turn))}


def float_cases(image):
    scaled = F.to_dtype(image, torch.float32, scale=True)
    yield {"op": "to_tensor", "args": [], "values": scaled.flatten().tolist()}
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    yield {"op": "normalize", "args": mean + std, "values": F.normalize(scaled, mean, std).flatten().tolist()}


def mix_cases():
    batch = torch.stack([tensor_of(picture(5, 6)), 255 - tensor_of(picture(5, 6))]).float() / 255
    labels = torch.tensor([2, 0])
    mix = v2.MixUp(num_classes=3)
    drawn = {"labels": labels, "batch_size": 2, "lam": 0.3}
    yield {
        "op": "mixup",
        "args": [0.3],
        "values": mix.transform(batch, drawn).flatten().tolist(),
        "labels": mix.transform(labels, drawn).flatten().tolist(),
    }


def main():
    image, small = tensor_of(picture(17, 23)), tensor_of(picture(9, 11))
    table = {
        "pictures": {
            "image": described(image),
            "gray": described(tensor_of(picture(17, 23, 1))),
            "small": described(small),
            "small gray": described(tensor_of(picture(9, 11, 1))),
            "tiny": described(tensor_of(picture(5, 6))),
        },
        "photos": list(photo_cases()),
        "cases": [{"in": "image"} | case for case in resize_cases(image)]
        + [{"in": "gray"} | case for case in list(resize_cases(tensor_of(picture(17, 23, 1))))[::5]]
        + [{"in": "small"} | case for case in augment_cases(small)]
        + [{"in": "small gray"} | case for case in augment_cases(tensor_of(picture(9, 11, 1)))]
        + [{"in": "small"} | case for case in hue_cases(small)]
        + [{"in": "tiny"} | case for case in float_cases(tensor_of(picture(5, 6)))]
        + [{"in": "tiny"} | case for case in mix_cases()],
    }
    lines = [f'"pictures": {json.dumps(table["pictures"])}']
    for key in ("photos", "cases"):
        lines.append(f'"{key}": [\n' + ",\n".join(json.dumps(case) for case in table[key]) + "\n]")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
