#!/usr/bin/env python3
"""Writes the reference pictures of image_reference_test.cpp: files, and what Pillow makes of them.

    python3 tests/image_reference/make.py          (NumPy, Pillow; written with Pillow 13.0.0)

NAME.jpg or NAME.png is decoded, converted to RGB, cut to a box, resized with antialiased bilinear
interpolation and written as NAME[.CASE].rgb, raw bytes. cases.txt lists: file, box, size, output.
"""
import io
import os

import numpy as np
from PIL import Image

HERE = os.path.dirname(os.path.abspath(__file__))


def picture(width, height, seed=7):
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    out = np.stack([90 + 100 * x / width, 60 + 120 * y / height, 200 - 90 * (x + y) / (width + height)], -1)
    for _ in range(9):
        cx, cy, r = random.uniform(0, width), random.uniform(0, height), random.uniform(8, 45)
        mask = (x - cx) ** 2 + (y - cy) ** 2 < r * r
        out[mask] += random.uniform(-90, 90, 3) * (0.6 + 0.4 * np.sin(x[mask] * 0.3))[:, None]
    out += random.standard_normal(out.shape) * 6
    return Image.fromarray(np.clip(out, 0, 255).astype(np.uint8))


def main():
    photo = picture(213, 157)
    files = {
        "color_420.jpg": (photo, dict(quality=90, subsampling="4:2:0")),
        "color_422.jpg": (photo, dict(quality=85, subsampling="4:2:2")),
        "color_444.jpg": (photo, dict(quality=85, subsampling="4:4:4")),
        "progressive.jpg": (photo, dict(quality=90, progressive=True)),
        "gray.jpg": (photo.convert("L"), dict(quality=90)),
        "cmyk.jpg": (photo.convert("CMYK"), dict(quality=90)),
        "color.png": (photo.crop((0, 0, 64, 48)), {}),
        "palette.png": (photo.crop((0, 0, 64, 48)).quantize(64), {}),
        "gray_alpha.png": (photo.crop((0, 0, 64, 48)).convert("LA"), {}),
    }
    whole = (0, 0, 213, 157)
    cases = {
        "color_420.jpg": [(whole, None), ((13, 9, 200, 140), (64, 64)), ((100, 20, 160, 77), (96, 96)),
                          ((1, 1, 212, 156), (24, 32)), ((50, 50, 114, 114), (64, 64)),
                          ((7, 3, 9, 5), (33, 33)), (whole, (213, 9))],
        "color_422.jpg": [((13, 9, 200, 140), None)],
        "color_444.jpg": [((13, 9, 200, 140), None)],
        "progressive.jpg": [((31, 17, 131, 117), None)],
        "gray.jpg": [((31, 17, 131, 117), None)],
        "cmyk.jpg": [((31, 17, 131, 117), None)],
        "color.png": [((3, 5, 60, 40), (32, 32))],
        "palette.png": [((0, 0, 64, 48), None)],
        "gray_alpha.png": [((0, 0, 64, 48), None)],
    }
    lines = []
    for name, (image, options) in files.items():
        data = io.BytesIO()
        image.save(data, "JPEG" if name.endswith("jpg") else "PNG", **options)
        with open(os.path.join(HERE, name), "wb") as file:
            file.write(data.getvalue())
        for index, (box, size) in enumerate(cases[name]):
            decoded = Image.open(io.BytesIO(data.getvalue()))
            if name == "gray_alpha.png":
                decoded = decoded.convert("LA").getchannel("L")
            crop = decoded.convert("RGB").crop(box)
            size = size or (box[2] - box[0], box[3] - box[1])
            if size != crop.size:
                crop = crop.resize(size, Image.Resampling.BILINEAR)
            output = "%s.%d.rgb" % (name, index)
            with open(os.path.join(HERE, output), "wb") as file:
                file.write(np.asarray(crop).tobytes())
            lines.append(" ".join(map(str, (name, *box, *size, output))))
    with open(os.path.join(HERE, "cases.txt"), "w") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
