#!/usr/bin/env python3
"""Writes the reference files beside it: what PyTorch computes for GPT-2, BERT and ResNet-50.

Weights and inputs follow a rule that the test computes too (values below), so the files hold results
only: loss, logits, a sample of every gradient and of the running statistics, all from a run in
float64, and how far PyTorch's own float32 run is from it.

    python3 tests/reference/make.py        needs torch, torchvision, transformers, safetensors
"""

import os

import numpy
import torch
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
SAMPLES = 256


def fnv1a(text):
    h = 0x811C9DC5
    for c in text.encode():
        h = ((h ^ c) * 0x01000193) & 0xFFFFFFFF
    return h


def words(name, count):
    """32-bit words: a counter that starts at the name's hash, mixed."""
    x = (numpy.arange(count, dtype=numpy.uint64) + fnv1a(name)).astype(numpy.uint32)
    x ^= x >> numpy.uint32(16)
    x *= numpy.uint32(0x85EBCA6B)
    x ^= x >> numpy.uint32(13)
    x *= numpy.uint32(0xC2B2AE35)
    x ^= x >> numpy.uint32(16)
    return x


def unit(name, count):
    """Values in [-1, 1) that float32 holds exactly."""
    return (words(name, count) >> numpy.uint32(8)).astype(numpy.float64) * 2.0**-23 - 1.0


def values(name, shape):
    v = unit(name, int(numpy.prod(shape))).reshape(shape)
    if name.endswith("running_var"):
        return 1 + 0.5 * v
    # ResNet: small branches, so that rounding errors do not grow with depth, and channels that are
    # all on or all off, so that none of them decides on which side of a ReLU a value falls.
    if name.endswith("bn3.weight"):
        return 0.25 + 0.0625 * v
    if name.endswith("bn3.bias"):
        return 2 + 0.125 * v
    if name.endswith("downsample.1.bias"):
        return 8 + 0.125 * v
    if name.endswith(("bn1.bias", "bn2.bias")):
        return numpy.where(v < 0, -8, 8) + 0.125 * v
    if len(shape) == 1:
        return 1 + 0.25 * v if name.endswith(".weight") else 0.125 * v
    fan = v.size // shape[0]
    scale = 1.0
    while scale * scale * fan > 1:
        scale *= 0.5
    return scale * v


def picked(name, flat):
    n = flat.shape[0]
    if n <= SAMPLES:
        return flat
    at = words("sample:" + name, SAMPLES).astype(numpy.int64) % n
    return flat[torch.from_numpy(at)]


def run(make, public, forward, dtype):
    model = make().to(dtype)
    model.train()
    with torch.no_grad():
        for name, tensor in list(model.named_parameters()) + list(model.named_buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.from_numpy(values(public(name), tuple(tensor.shape))))
    logits, targets = forward(model, dtype)
    loss = torch.nn.functional.cross_entropy(logits, targets, ignore_index=-100)
    loss.backward()
    out = {"loss": loss.detach().reshape(1), "logits": logits.detach().reshape(-1)}
    for name, p in model.named_parameters():
        out["grad:" + public(name)] = p.grad.reshape(-1)
    for name, b in model.named_buffers():
        if "running" in name:
            out["buffer:" + public(name)] = b.reshape(-1)
    return {k: picked(k, v.to(torch.float64)) for k, v in out.items()}


def write(name, make, public, forward):
    exact = run(make, public, forward, torch.float64)
    single = run(make, public, forward, torch.float32)
    tensors = {k: v.contiguous() for k, v in exact.items()}
    for k, v in exact.items():
        tensors["error:" + k] = torch.linalg.vector_norm(single[k] - v).reshape(1)
    path = os.path.join(HERE, name + ".safetensors")
    save_file(tensors, path, metadata={"torch": torch.__version__})
    os.chmod(path, 0o644)
    print(name, os.path.getsize(path), "bytes, loss", float(exact["loss"]))


def tokens(name, count, below):
    return torch.from_numpy(words(name, count).astype(numpy.int64) % below)


def gpt():
    from transformers import GPT2Config, GPT2LMHeadModel

    def make():
        return GPT2LMHeadModel(GPT2Config(
            vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=None, eos_token_id=None, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="eager"))

    def forward(model, _):
        ids = tokens("input", 3 * 16, 64).reshape(3, 16)
        return model(input_ids=ids).logits.reshape(-1, 64), tokens("target", 3 * 16, 64)

    write("gpt", make, lambda n: n.removeprefix("transformer."), forward)


def bert():
    from transformers import BertConfig, BertForMaskedLM

    def make():
        return BertForMaskedLM(BertConfig(
            vocab_size=64, max_position_embeddings=16, hidden_size=32, num_hidden_layers=2,
            num_attention_heads=2, intermediate_size=128, hidden_act="gelu",
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
            attn_implementation="eager"))

    def forward(model, _):
        ids = tokens("input", 3 * 16, 64).reshape(3, 16)
        lengths = torch.tensor([16, 9, 1])
        mask = (torch.arange(16)[None, :] < lengths[:, None]).long()
        target = tokens("target", 3 * 16, 64).reshape(3, 16)
        # Every other token is masked out of the loss, and all padding is.
        counts = (torch.arange(16)[None, :] % 2 == 0) & (mask == 1)
        target = torch.where(counts, target, torch.full_like(target, -100))
        return model(input_ids=ids, attention_mask=mask).logits.reshape(-1, 64), target.reshape(-1)

    write("bert", make, lambda n: n, forward)


def resnet50():
    import torchvision

    def make():
        return torchvision.models.resnet50(num_classes=10)

    def forward(model, dtype):
        pixels = words("input", 2 * 64 * 64 * 3) & numpy.uint32(255)
        x = torch.from_numpy(pixels.astype(numpy.float64)).reshape(2, 64, 64, 3)
        x = ((x / 255 - 0.5) / 0.5).permute(0, 3, 1, 2).contiguous()
        return model(x.to(dtype)), tokens("target", 2, 10)

    write("resnet50", make, lambda n: n, forward)


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    gpt()
    bert()
    resnet50()
