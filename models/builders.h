// One function per model file; model.cpp maps names to them.
#pragma once

#include <memory>

#include "models/model.h"

namespace penstock::models {

std::unique_ptr<Model> make_mlp(const ModelOptions& options);
std::unique_ptr<Model> make_cnn(const ModelOptions& options);
std::unique_ptr<Model> make_resnet(const ModelOptions& options);
std::unique_ptr<Model> make_gpt(const ModelOptions& options);
std::unique_ptr<Model> make_bert(const ModelOptions& options);
std::unique_ptr<Model> make_vit(const ModelOptions& options);
std::unique_ptr<Model> make_conv3d(const ModelOptions& options);

// The dtype of activations beside `weight`: the mixed-precision scope's, or f64 for f64 weights.
DType stream_dtype(const Tensor& weight);
// Throws ConfigError unless layers, heads and width fit each other and the input is [T].
void check_transformer(const ModelOptions& options);
// Throws ConfigError unless the input is [H, W, C] (rank 3) or [D, H, W, C] (rank 4).
void expect_input_rank(const ModelOptions& options, int rank, const char* what);

}  // namespace penstock::models
