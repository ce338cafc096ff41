// The row kernels of attention's general path: masked softmax and its gradient between matrix
// products.
#pragma once

#include "framework/kernels/attention.h"

namespace penstock::kernels {

// Which part of the scores a call covers: of one sample, heads [head, head + heads) and queries
// [query, query + queries) against keys [0, keys).
struct ScoreBlock {
  i64 sample = 0;
  i64 head = 0;
  i64 heads = 0;
  i64 query = 0;
  i64 queries = 0;
  i64 keys = 0;
};

// Scores [heads, queries, keys], not scaled and overwritten here, become probabilities of the
// operands' dtype: masked ones are 0. saved [B, H, T] receives each row's max + log sum, -inf where every key is masked. For
// f32 and f64 `probabilities` may be `scores`.
void attention_softmax(const Attention& a, const ScoreBlock& at, const Tensor& scores,
                       const Tensor& lengths, const Tensor& probabilities, const Tensor& saved);

struct ScoreGradients {
  Tensor scores;         // [heads, queries, keys], not scaled
  Tensor dprobabilities;  // the same
  Tensor lengths, saved, y, dy;
  Tensor probabilities;  // receive the probabilities and the gradient of the unscaled scores, in the
  Tensor dscores;        // operands' dtype; may be `scores` and `dprobabilities`
};
void attention_softmax_gradient(const Attention& a, const ScoreBlock& at, const ScoreGradients& t);

// Keys' and values' gradients of heads [head, head + heads) of one sample, summed in f32
// [2, T, heads, D], into dqkv [B, T, 3, H, D].
void attention_store_gradients(const Attention& a, const ScoreBlock& at, const Tensor& sums,
                               const Tensor& dqkv);

}  // namespace penstock::kernels
