#!/usr/bin/env python3
"""Checks what each folder includes: only what stands below it, the standard library, and, in
sources alone, the libraries that were chosen. Prints every violation and exits with 1 if any."""
import re
import sys
from pathlib import Path

# Rank of every folder: it may include folders of a lower rank, and itself.
RANKS = {
    "framework/core": 0,
    "framework/kernels": 1,
    "framework/autograd": 2,
    "framework/ops": 3,
    "framework/nn": 4,
    "framework/optim": 5,  # it updates the arenas of nn
    "framework/io": 6,
    "framework/dist": 6,
    "framework/measure": 6,
    "models": 7,
    "data": 7,
    "framework/tuner": 7,
    "trainers": 8,
}
# Folders that may include less than what stands below them.
ONLY = {
    "data": {"framework/core"},
    "framework/tuner": {"framework/core/check.h"},
}
# These may include everything.
FREE = ("tests", "benchmarks", "examples")
SOURCES = {".h", ".cpp", ".cu", ".cuh"}
HEADERS = {".h", ".cuh"}
# Headers that come with the language or the system.
SYSTEM_FOLDERS = ("sys/", "linux/", "netinet/", "arpa/", "sanitizer/")
SYSTEM = set(
    "dirent dlfcn errno fcntl immintrin netdb poll pthread sched signal stddef stdint stdlib string "
    "termios time unistd x86intrin".split())
THIRD_PARTY = re.compile(
    r"^(cuda|cublas|cudnn|nccl|nvml|nvtx|nvToolsExt|driver_types|library_types|vector_types|"
    r"oneapi|dnnl|omp\.h|tbb|yaml-cpp|spdlog|fmt|nlohmann|CLI|zlib|jpeglib|jerror|jpegint|png|"
    r"turbojpeg|xxhash|gtest|gmock|benchmark)")
# Private headers of the plugins, which are there to use a library.
PLUGINS = ("framework/kernels/cuda_plugin/", "framework/kernels/onednn_plugin/")
# The headers through which kernels are launched, and their source: only they know which compiler is
# at work.
LAUNCH = {
    "framework/kernels/basic.cu",
    "framework/core/target.h",
    "framework/core/math.h",
    "framework/kernels/launch.h",
    "framework/kernels/rows.h",
}
# Kernel sources that are built for both devices.
NO_STD_MATH = re.compile(
    r"std::(exp|log|log1p|expm1|tanh|sqrt|pow|sin|cos|erf|fma|floor|ceil|round|fabs)f?\s*\(")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
COMPILER = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif)\b.*\b__(CUDACC|CUDA_ARCH|NVCC)__", re.M)


def folder_of(path):
    """The folder of the table that `path` lies in."""
    for folder in RANKS:
        if path.startswith(folder + "/"):
            return folder
    return None


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def check_ours(path, included, complain):
    own, other = folder_of(path), folder_of(included)
    if other is None:
        top = included.split("/")[0]
        if top in FREE:
            complain(f"includes {included}: nothing of the product uses {top}/")
        return
    if own == other:
        return
    if own in ONLY and other not in ONLY[own] and included not in ONLY[own]:
        complain(f"includes {included}: {own}/ may only use {', '.join(sorted(ONLY[own]))}")
    elif RANKS[other] >= RANKS[own]:
        kind = "a sibling of" if RANKS[other] == RANKS[own] else "above"
        complain(f"includes {included}: {other}/ stands {kind} {own}/")


def is_system(name):
    if "/" not in name and "." not in name:
        return True  # the standard library
    return name.endswith(".h") and (name.startswith(SYSTEM_FOLDERS) or name[:-2] in SYSTEM)


def check_file(root, path, complain):
    text = (root / path).read_text(encoding="utf-8", errors="replace")
    suffix = Path(path).suffix

    def at(position):
        return lambda message: complain(f"{path}:{line_of(text, position)}: {message}")

    for match in INCLUDE.finditer(text):
        quote, included = match.groups()
        tell = at(match.start())
        if quote == '"':
            if not (root / included).is_file():
                tell(f'includes "{included}": not a path from the root of the project')
            else:
                check_ours(path, included, tell)
            continue
        if (root / included).is_file():
            tell(f"includes <{included}> of ours: write it in quotes")
        elif THIRD_PARTY.match(included):
            launches = path in LAUNCH and included == "cuda_runtime.h"
            if suffix in HEADERS and not launches and not path.startswith(PLUGINS):
                tell(f"includes <{included}>: other people's headers belong in sources")
        elif not is_system(included):
            tell(f"includes <{included}>: neither of the system nor one of the chosen libraries")
        elif folder_of(path) == "framework/tuner" and ("." in included or included in (
                "thread", "mutex", "atomic", "condition_variable", "future", "chrono")):
            tell(f"includes <{included}>: the tuner has no threads, no clock and no system")
    if path not in LAUNCH:
        for match in COMPILER.finditer(text):
            at(match.start())("asks which compiler is at work: only launch headers do")
    if suffix == ".cu":
        for match in NO_STD_MATH.finditer(text):
            at(match.start())(f"{match.group(0)[:-1].strip()}: kernels use framework/core/math.h")
    # Headers that C may read have guards instead.
    if suffix in HEADERS and not re.search(r"^#(pragma once|ifndef PENSTOCK_\w+_H)$", text, re.M):
        complain(f"{path}:1: a header without #pragma once")


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve()
    found = []
    files = sorted(
        str(p.relative_to(root)) for top in ("framework", "models", "data", "trainers")
        for p in (root / top).rglob("*") if p.suffix in SOURCES)
    if not files:
        sys.exit(f"check_layers: no sources under {root}")
    for path in files:
        if folder_of(path) is None:
            found.append(f"{path}:1: a folder that the table of layers does not know")
            continue
        check_file(root, path, found.append)
    for line in found:
        print(line)
    print(f"check_layers: {len(files)} files, {len(found)} violations")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
