#!/usr/bin/env python3
"""The same pictures, the same crops, the same filter through several loaders; see README.md.

    python3 peers.py run --root IMAGES --penstock BUILD/benchmarks/loader_peer [--repeats 3]
    python3 peers.py peer NAME --root IMAGES --crops FILE --track u8 --workers 2   (one, by hand)

Every run of a peer is a process of its own, pinned to --cores cores; runs are interleaved. What
counts is images per CPU-second of the whole process tree, over the epochs after the first.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE = 224
SAVED = 64


# ---- measuring -----------------------------------------------------------------------------------
def tree_seconds():
    """CPU time of this process and everything below it, ended children included."""
    parents, seconds, tick = {}, {}, os.sysconf("SC_CLK_TCK")
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open("/proc/%s/stat" % entry) as file:
                    fields = file.read().rsplit(")", 1)[1].split()
            except OSError:
                continue
            parents[int(entry)] = int(fields[1])
            seconds[int(entry)] = sum(map(int, fields[11:15])) / tick
    total, todo = 0.0, [os.getpid()]
    while todo:
        pid = todo.pop()
        total += seconds.get(pid, 0.0)
        todo += [child for child, parent in parents.items() if parent == pid]
    return total


def measure(make_batches, count, arguments):
    """make_batches() iterates an endless or per-epoch stream of image batches, in order."""
    import numpy as np

    batches = count // arguments.batch
    begin, first, seen = time.perf_counter(), None, 0
    wall = cpu = None
    for epoch in range(arguments.epochs):
        for batch in make_batches():
            if first is None:
                first = time.perf_counter() - begin
                if arguments.save:
                    np.save(arguments.save, np.asarray(batch[:SAVED]))
            if epoch > 0:
                seen += len(batch)
        if epoch == 0:
            wall, cpu = time.perf_counter(), tree_seconds()
    wall, cpu = time.perf_counter() - wall, tree_seconds() - cpu
    assert seen == batches * arguments.batch * (arguments.epochs - 1), "%d images seen" % seen
    return {"peer": arguments.name, "track": arguments.track, "workers": arguments.workers,
            "images": seen, "per_second": round(seen / wall, 1),
            "per_cpu_second": round(seen / cpu, 1), "first_batch_s": round(first, 3)}


def read_crops(arguments):
    with open(arguments.crops) as file:
        rows = [line.split() for line in file]
    return [(os.path.join(arguments.root, row[0]), *map(int, row[1:])) for row in rows]


# ---- PyTorch -------------------------------------------------------------------------------------
def torch_peer(arguments, decoder):
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset
    from torchvision.transforms.v2 import functional as F

    torch.set_num_threads(1)
    if decoder.startswith("cv2"):
        import cv2
        cv2.setNumThreads(0)
    from PIL import Image
    from torchvision.io import ImageReadMode, decode_jpeg, read_file

    crops = read_crops(arguments)
    f32 = arguments.track == "f32"
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)

    def finish(chw):
        if not f32:
            return chw
        return chw.to(torch.float32).div_(255).sub_(mean).div_(std)

    class Pictures(Dataset):
        def __len__(self):
            return len(crops) // arguments.batch * arguments.batch

        def __getitem__(self, index):
            path, x, y, w, h, flip = crops[index]
            if decoder == "pil":
                with open(path, "rb") as file:
                    image = Image.open(file).convert("RGB")
                image = image.crop((x, y, x + w, y + h)).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
                if flip:
                    image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
                hwc = torch.from_numpy(np.array(image))
                return finish(hwc.permute(2, 0, 1)) if f32 else hwc
            if decoder == "torchvision":
                chw = decode_jpeg(read_file(path), mode=ImageReadMode.RGB)
                chw = F.resized_crop(chw, y, x, h, w, [SIZE, SIZE], antialias=True)
                return finish(F.horizontal_flip(chw) if flip else chw)
            with open(path, "rb") as file:
                hwc = cv2.imdecode(np.frombuffer(file.read(), np.uint8), cv2.IMREAD_COLOR_RGB)
            if decoder == "cv2_antialias":
                chw = torch.from_numpy(hwc).permute(2, 0, 1)
                chw = F.resized_crop(chw, y, x, h, w, [SIZE, SIZE], antialias=True)
                return finish(F.horizontal_flip(chw) if flip else chw)
            hwc = cv2.resize(hwc[y:y + h, x:x + w], (SIZE, SIZE), interpolation=cv2.INTER_LINEAR)
            if flip:
                hwc = cv2.flip(hwc, 1)
            hwc = torch.from_numpy(hwc)
            return finish(hwc.permute(2, 0, 1)) if f32 else hwc

    loader = DataLoader(Pictures(), batch_size=arguments.batch, num_workers=arguments.workers,
                        persistent_workers=arguments.workers > 0,
                        prefetch_factor=2 if arguments.workers else None)

    def batches():
        for batch in loader:
            nchw = batch.shape[1] == 3
            yield batch.permute(0, 2, 3, 1) if nchw else batch

    return measure(batches, len(crops), arguments)


# ---- DALI, CPU only ------------------------------------------------------------------------------
def dali_peer(arguments, antialias=True):
    import numpy as np
    from nvidia.dali import fn, pipeline_def, types

    crops = read_crops(arguments)
    count = len(crops) // arguments.batch * arguments.batch
    boxes = np.array([row[1:] for row in crops[:count]], np.float32)

    @pipeline_def(batch_size=arguments.batch, num_threads=arguments.workers, device_id=None,
                  prefetch_queue_depth=2)
    def pipeline():
        jpegs, _ = fn.readers.file(files=[row[0] for row in crops[:count]], random_shuffle=False,
                                   name="reader", prefetch_queue_depth=2)
        anchor, shape, flip = fn.external_source(BatchSource(), num_outputs=3, batch=True)
        images = fn.decoders.image_slice(jpegs, anchor, shape, axis_names="WH",
                                         normalized_anchor=False, normalized_shape=False,
                                         device="cpu", output_type=types.RGB)
        images = fn.resize(images, size=[SIZE, SIZE], interp_type=types.INTERP_LINEAR,
                           antialias=antialias)
        if arguments.track == "f32":
            return fn.crop_mirror_normalize(images, mirror=flip, dtype=types.FLOAT,
                                            output_layout="CHW", mean=[255 * m for m in MEAN],
                                            std=[255 * s for s in STD])
        return fn.crop_mirror_normalize(images, mirror=flip, dtype=types.UINT8, output_layout="HWC",
                                        mean=[0, 0, 0], std=[1, 1, 1])

    class BatchSource:
        def __init__(self):
            self.at = 0

        def __iter__(self):
            return self

        def __next__(self):
            rows = boxes[self.at:self.at + arguments.batch]
            self.at = (self.at + arguments.batch) % count
            return (np.ascontiguousarray(rows[:, 0:2]), np.ascontiguousarray(rows[:, 2:4]),
                    rows[:, 4].astype(np.int32))

    pipe = pipeline()
    pipe.build()

    def batches():
        for _ in range(count // arguments.batch):
            (batch,) = pipe.run()
            array = batch.as_array() if not hasattr(batch, "as_tensor") else np.asarray(batch.as_tensor())
            yield array.transpose(0, 2, 3, 1) if array.shape[1] == 3 else array

    return measure(batches, len(crops), arguments)


# ---- SPDL ----------------------------------------------------------------------------------------
def spdl_peer(arguments, exact=True):
    import numpy as np
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    crops = read_crops(arguments)
    count = len(crops) // arguments.batch * arguments.batch
    mean, scale = np.float32([255 * m for m in MEAN]), np.float32([1 / (255 * s) for s in STD])

    def decode(row):
        path, x, y, w, h, flip = row
        # Converting first keeps odd offsets exact; cropping first is cheaper.
        crop = "crop=%d:%d:%d:%d:exact=1" % (w, h, x, y)
        scaled = "scale=%d:%d:flags=bilinear%s" % (SIZE, SIZE, "+accurate_rnd+full_chroma_int" if exact else "")
        chain = (["format=pix_fmts=rgb24", crop, scaled] if exact else [crop, scaled])
        chain += ["hflip"] if flip else []
        packets = spdl.io.demux_image(path)
        return spdl.io.decode_packets(packets, filter_desc=",".join(chain + ["format=pix_fmts=rgb24"]))

    def gather(frames):
        array = spdl.io.to_numpy(spdl.io.convert_frames(frames))
        return (array.astype(np.float32) - mean) * scale if arguments.track == "f32" else array

    def batches():
        pipeline = (PipelineBuilder().add_source(crops[:count])
                    .pipe(decode, concurrency=arguments.workers, output_order="input")
                    .aggregate(arguments.batch).pipe(gather).add_sink(2)
                    .build(num_threads=arguments.workers + 1))
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()

    return measure(batches, len(crops), arguments)


# ---- tf.data -------------------------------------------------------------------------------------
def tf_peer(arguments):
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    crops = read_crops(arguments)
    count = len(crops) // arguments.batch * arguments.batch
    paths = [row[0] for row in crops[:count]]
    boxes = [[row[2], row[1], row[4], row[3]] for row in crops[:count]]
    flips = [bool(row[5]) for row in crops[:count]]

    def load(path, box, flip):
        image = tf.io.decode_and_crop_jpeg(tf.io.read_file(path), box, channels=3,
                                           dct_method="INTEGER_ACCURATE")
        image = tf.image.resize(image, [SIZE, SIZE], "bilinear", antialias=True)
        image = tf.cond(flip, lambda: tf.reverse(image, [1]), lambda: image)
        if arguments.track == "f32":
            return (image / 255 - MEAN) / STD
        return tf.cast(tf.round(image), tf.uint8)

    dataset = tf.data.Dataset.from_tensor_slices((paths, boxes, flips))
    dataset = dataset.map(load, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    dataset = dataset.batch(arguments.batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    options = tf.data.Options()
    options.threading.private_threadpool_size = arguments.workers
    dataset = dataset.with_options(options)
    return measure(lambda: (batch.numpy() for batch in dataset), len(crops), arguments)


PEERS = {
    # name: (function, the same filter as the reference, worker counts tried)
    "torch_pil": (lambda a: torch_peer(a, "pil"), True, (1, 2)),
    "torch_torchvision": (lambda a: torch_peer(a, "torchvision"), True, (1, 2)),
    "torch_cv2_antialias": (lambda a: torch_peer(a, "cv2_antialias"), True, (1, 2)),
    "torch_cv2": (lambda a: torch_peer(a, "cv2"), False, (1, 2)),
    "dali": (lambda a: dali_peer(a), True, (1, 2)),
    "dali_plain": (lambda a: dali_peer(a, antialias=False), False, (1, 2)),
    "spdl": (lambda a: spdl_peer(a), True, (1, 2)),
    "spdl_plain": (lambda a: spdl_peer(a, exact=False), False, (1, 2)),
    "tf_data": (lambda a: tf_peer(a), True, (2,)),
}


# ---- the comparison ------------------------------------------------------------------------------
def reference(arguments, crops):
    """What Pillow makes of the first crops: the filter that all are compared with."""
    import numpy as np
    from PIL import Image

    out = []
    for row in crops[:SAVED]:
        path, x, y, w, h, flip = row
        image = Image.open(path).convert("RGB").crop((x, y, x + w, y + h))
        image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        array = np.asarray(image)
        out.append(array[:, ::-1] if flip else array)
    return np.stack(out).astype(np.float32)


def psnr(saved, want):
    import numpy as np

    if saved.dtype == np.float32:
        saved = (saved * np.float32(STD) + np.float32(MEAN)) * 255
    error = np.mean((saved.astype(np.float32) - want) ** 2)
    return round(float(10 * np.log10(255 ** 2 / max(error, 1e-10))), 1)


def run(arguments):
    import numpy as np

    cores = sorted(os.sched_getaffinity(0))[:arguments.cores]
    os.sched_setaffinity(0, cores)
    scratch = tempfile.mkdtemp(prefix="loader_peers_")
    arguments.crops = os.path.join(scratch, "crops")
    subprocess.run([arguments.penstock, "--root", arguments.root, "--write-crops", arguments.crops],
                   check=True)
    want = reference(arguments, read_crops(arguments))
    names = arguments.only.split(",") if arguments.only else list(PEERS)
    jobs = []
    for track in arguments.tracks.split(","):
        for quality in ("matched", "fast"):
            for workers in (1, 2):
                jobs.append(("penstock_" + quality, track, workers,
                             [arguments.penstock, "--root", arguments.root, "--track", track,
                              "--quality", quality, "--workers", str(workers)]))
        for name in names:
            for workers in PEERS[name][2]:
                jobs.append((name, track, workers,
                             [sys.executable, __file__, "peer", name, "--root", arguments.root,
                              "--crops", arguments.crops, "--track", track,
                              "--workers", str(workers)]))
    environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    results, quality_of = {}, {}
    for repeat in range(arguments.repeats):
        for name, track, workers, command in jobs:
            save = os.path.join(scratch, "save.npy")
            done = subprocess.run(
                command + ["--save", save, "--batch", str(arguments.batch), "--epochs", str(arguments.epochs)],
                env=environment, capture_output=True, text=True)
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            if not lines:
                if repeat == 0:
                    print("%s: did not run: %s" % (name, done.stderr.strip()[-300:]), file=sys.stderr)
                continue
            results.setdefault((name, track, workers), []).append(json.loads(lines[-1]))
            if name.startswith("penstock"):
                data = np.fromfile(save, np.float32 if track == "f32" else np.uint8)
                data = data.reshape(-1, SIZE, SIZE, 3)
            else:
                data = np.load(save)
            quality_of[(name, track)] = psnr(data, want)
    table = []
    for (name, track, workers), runs in results.items():
        rates = sorted(run["per_cpu_second"] for run in runs)
        walls = sorted(run["per_second"] for run in runs)
        table.append({"peer": name, "track": track, "workers": workers,
                      "per_cpu_second": rates[len(rates) // 2], "low": rates[0], "high": rates[-1],
                      "per_second": walls[len(walls) // 2],
                      "first_batch_s": min(run["first_batch_s"] for run in runs),
                      "psnr_db": quality_of[(name, track)],
                      "matched": PEERS[name][1] if name in PEERS else name == "penstock_matched"})
    table.sort(key=lambda row: (row["track"], not row["matched"], -row["per_cpu_second"]))
    print("%-20s %-5s %7s %12s %17s %9s %8s %8s" % ("peer", "track", "workers", "img/CPU-s",
                                                   "low..high", "img/s", "first s", "PSNR dB"))
    for row in table:
        print("%-20s %-5s %7d %12.1f %8.1f..%7.1f %9.1f %8.3f %8.1f%s" % (
            row["peer"], row["track"], row["workers"], row["per_cpu_second"], row["low"],
            row["high"], row["per_second"], row["first_batch_s"], row["psnr_db"],
            "" if row["matched"] else "  other filter"))
    print(json.dumps({"benchmark": "loader_peers", "cores": len(cores), "rows": table}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("run", "peer"):
        command = commands.add_parser(name)
        if name == "peer":
            command.add_argument("name", choices=sorted(PEERS))
            command.add_argument("--crops", required=True)
            command.add_argument("--track", default="u8", choices=("u8", "f32"))
            command.add_argument("--workers", type=int, default=2)
            command.add_argument("--save", default="")
        else:
            command.add_argument("--penstock", required=True, help="the loader_peer program")
            command.add_argument("--tracks", default="u8,f32")
            command.add_argument("--repeats", type=int, default=3)
            command.add_argument("--cores", type=int, default=2)
            command.add_argument("--only", default="", help="comma-separated peers")
        command.add_argument("--root", required=True)
        command.add_argument("--batch", type=int, default=128)
        command.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.command == "run":
        run(arguments)
    else:
        print(json.dumps(PEERS[arguments.name][0](arguments)))


if __name__ == "__main__":
    main()
