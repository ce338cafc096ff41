#!/usr/bin/env python3
"""Writes a deterministic folder of JPEGs for the input benchmarks.

    python3 tools/make_images.py OUT [--count 2048] [--classes 16] [--photos DIR] [--corners]

The set follows ImageNet's training images: about 500x375 (portrait and landscape), 4:2:0, quality
93 to 97, 110 kB on average. With --photos DIR the pictures are reduced crops of the photographs found
there (any depth; e.g. the unpacked mate-backgrounds and gnome-backgrounds packages of Debian);
without, they are generated: gradients, textured shapes, multi-scale noise. The same arguments give
the same files. --corners adds a progressive, a gray and a CMYK file to every class.
Needs NumPy and Pillow.
"""
import argparse
import io
import multiprocessing
import os

import numpy as np
from PIL import Image

Image.MAX_IMAGE_PIXELS = None


def generated(random, width, height):
    """A photo-like picture: smooth light, shapes with texture, noise on several scales."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    picture = np.empty((height, width, 3), np.float32)
    for channel in range(3):
        angle = random.uniform(0, 2 * np.pi)
        slope = (x / width - 0.5) * np.cos(angle) + (y / height - 0.5) * np.sin(angle)
        picture[..., channel] = 90 + 70 * random.uniform() + 60 * slope
    for _ in range(int(random.integers(8, 16))):
        cx, cy, size = random.uniform(0, width), random.uniform(0, height), random.uniform(15, 130)
        colour = random.uniform(-90, 90, 3).astype(np.float32)
        if random.random() < 0.5:
            mask = (x - cx) ** 2 + (y - cy) ** 2 < size * size
        else:
            mask = (abs(x - cx) < size) & (abs(y - cy) < size * random.uniform(0.3, 1))
        phase = x[mask] * random.uniform(0.02, 0.4) + y[mask] * random.uniform(0.02, 0.4)
        picture[mask] += colour * (0.6 + 0.4 * np.sin(phase))[:, None]
    for scale, amplitude in ((4, 22), (2, 13), (1, 7)):
        noise = random.standard_normal((height // scale + 2, width // scale + 2), dtype=np.float32)
        noise = np.kron(noise, np.ones((scale, scale), np.float32))[:height, :width]
        picture += amplitude * noise[..., None]
    return Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8))


def photographed(random, width, height, photos, cache):
    """A crop of one of the photographs, reduced by 1 to 4 so that content differs in scale."""
    path = photos[int(random.integers(len(photos)))]
    if path not in cache:
        cache[path] = Image.open(path).convert("RGB")
    photo = cache[path]
    most = min(6.0, photo.width / width, photo.height / height)
    reduce = random.uniform(0.5 * most, most) if most > 2 else most
    w, h = width * reduce, height * reduce
    left, top = random.uniform(0, photo.width - w), random.uniform(0, photo.height - h)
    return photo.resize((width, height), Image.Resampling.LANCZOS, box=(left, top, left + w, top + h))


def write(task):
    index, arguments, photos = task
    random = np.random.default_rng(arguments.seed * 1_000_003 + index)
    long_side = int(np.clip(random.normal(500, 40), 200, 900))
    short_side = int(long_side * random.uniform(0.66, 0.8))
    size = (long_side, short_side) if random.random() < 0.7 else (short_side, long_side)
    picture = photographed(random, *size, photos, CACHE) if photos else generated(random, *size)
    folder = os.path.join(arguments.out, "class_%03d" % (index % arguments.classes))
    options = {"quality": int(random.integers(93, 98)), "subsampling": "4:2:0"}
    if arguments.corners and index < 3 * arguments.classes:
        kind = index // arguments.classes
        picture = (picture, picture.convert("L"), picture.convert("CMYK"))[kind]
        options["progressive"] = kind == 0
        if kind:
            del options["subsampling"]
    data = io.BytesIO()
    picture.save(data, "JPEG", **options)
    with open(os.path.join(folder, "%06d.jpg" % index), "wb") as file:
        file.write(data.getvalue())
    return len(data.getvalue())


CACHE = {}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out")
    parser.add_argument("--count", type=int, default=2048)
    parser.add_argument("--classes", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--photos", default="")
    parser.add_argument("--corners", action="store_true")
    arguments = parser.parse_args()
    for index in range(arguments.classes):
        os.makedirs(os.path.join(arguments.out, "class_%03d" % index), exist_ok=True)
    photos = sorted(
        os.path.join(folder, name)
        for folder, _, names in os.walk(arguments.photos)
        for name in names
        if name.lower().endswith((".jpg", ".jpeg"))
    ) if arguments.photos else []
    with multiprocessing.Pool() as pool:
        tasks = ((index, arguments, photos) for index in range(arguments.count))
        sizes = list(pool.imap(write, tasks, chunksize=16))
    print("%d files, mean %.1f kB, p10 %.1f, p90 %.1f" % (
        len(sizes), np.mean(sizes) / 1e3, np.percentile(sizes, 10) / 1e3, np.percentile(sizes, 90) / 1e3))


if __name__ == "__main__":
    main()
