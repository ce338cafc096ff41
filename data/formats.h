// Data sets in public formats. Every header is checked against the file before anything is
// allocated; errors are DataErrors that name the file.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace penstock::data {

// IDX images (u8 [N, H, W]) and labels (u8 [N]), plain or gzip: fields "image" [H, W, 1], "label".
// Throws for labels at or above `classes`.
std::shared_ptr<const Dataset> open_idx(const std::string& images, const std::string& labels,
                                        i64 classes = 256);
// The four files of MNIST and its relatives in `folder`, with or without .gz:
// train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte
// (or train-images.idx3-ubyte and so on).
std::shared_ptr<const Dataset> open_mnist(const std::string& folder, bool train);

// CIFAR-10 (data_batch_1.bin to _5, test_batch.bin) or CIFAR-100 (train.bin, test.bin; fine
// labels), in `folder` or the folder that its archive makes in it: fields "image" [32, 32, 3],
// "label".
std::shared_ptr<const Dataset> open_cifar(const std::string& folder, bool train, int classes);

struct TokenOptions {
  i64 sequence = 256;  // T
  i64 vocabulary = 0;  // tokens at or above it are an error; 0: not checked
  double begin = 0;    // the part of the stream that is used, as shares of it
  double end = 1;
};
// Token shards: raw little-endian u16, or with the 256-int header of llm.c (magic 20240520). Sample
// i is tokens [i T, i T + T] of the concatenated shards: fields "input" i32 [T] and "target" i32
// [T], shifted by one. Files stay open and are read window by window.
std::shared_ptr<const Dataset> open_tokens(const std::vector<std::string>& files,
                                           const TokenOptions& options);
// A text file as bytes, one token each.
std::shared_ptr<const Dataset> open_text(const std::string& file, const TokenOptions& options);

// Tokens with some masked for a masked-LM loss: "input" with 15 % (or `probability`) of the tokens
// replaced (80 % by `mask`, 10 % by a random token, 10 % kept), "target" -100 elsewhere, "length"
// i32
// []: the whole sequence. Drawn from (seed, epoch, index).
struct Masking {
  double probability = 0.15;
  i64 mask_token = 0;
  i64 vocabulary = 256;
};
std::shared_ptr<const Dataset> masked(std::shared_ptr<const Dataset> tokens,
                                      const Masking& masking);

// Made-up samples whose cost is chosen: studies of loader bottlenecks, and tests.
struct SyntheticOptions {
  i64 size = 10'000;
  std::uint64_t seed = 1;
  i64 classes = 10;         // images, volumes; the vocabulary for tokens
  Shape shape;              // [H, W, C], [D, H, W, C] or [T]
  double cpu_seconds = 0;   // of work per sample, on the worker's CPU clock
  double wait_seconds = 0;  // blocked per sample, as by slow storage
  double jitter = 0;        // every sample's cost is scaled by 1 +- jitter, fixed per index
};
// "image" (or, of rank 4, "volume") and "label": classes differ in brightness patterns, so that a
// model can learn them.
std::shared_ptr<const Dataset> synthetic_images(const SyntheticOptions& options);
// "input" and "target": walks in which the next token is most often one more than the last.
std::shared_ptr<const Dataset> synthetic_tokens(const SyntheticOptions& options);

}  // namespace penstock::data
