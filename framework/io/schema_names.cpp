// What a wrong name may have meant.
#include <algorithm>
#include <utility>

#include "framework/io/schema.h"

namespace penstock::io::schema {
namespace {

// Edits that turn one word into the other; neighbours that changed places are one.
std::size_t distance(const std::string& a, const std::string& b) {
  const std::size_t n = b.size() + 1;
  std::vector<std::size_t> rows(3 * n);
  const auto at = [&](std::size_t i, std::size_t j) -> std::size_t& { return rows[i % 3 * n + j]; };
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      if (i == 0 || j == 0) {
        at(i, j) = i + j;
        continue;
      }
      at(i, j) = std::min(
          {at(i - 1, j) + 1, at(i, j - 1) + 1, at(i - 1, j - 1) + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
      }
    }
  }
  return at(a.size(), n - 1);
}

// How far a slip may be from what was meant.
std::size_t slack(const std::string& word) {
  return std::max<std::size_t>(1, word.size() / 3);
}

// Lower case, "-" and blanks as "_"; cut, because distance() takes the product of both lengths.
std::string folded(const std::string& word) {
  std::string out;
  for (const char c : word.substr(0, 96)) {
    out += c == '-' || c == ' ' ? '_' : c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
  }
  return out;
}

// What other programs call our keys; only for hints.
constexpr std::pair<const char*, const char*> kForeign[] = {
    {"activation_checkpointing", "model.recompute"},
    {"amp", "train.precision"},
    {"arch", "model.name"},
    {"architecture", "model.name"},
    {"batchsize", "train.batch"},
    {"beta1", "optimizer.betas"},
    {"beta2", "optimizer.betas"},
    {"block_size", "data.sequence"},
    {"clip_grad_norm", "optimizer.clip_norm"},
    {"d_model", "model.width"},
    {"dataset", "data.name"},
    {"dtype", "train.precision"},
    {"eps", "optimizer.epsilon"},
    {"eval_interval", "evaluation.every"},
    {"eval_steps", "evaluation.every"},
    {"grad_accum", "train.accumulate"},
    {"grad_clip", "optimizer.clip_norm"},
    {"gradient_accumulation_steps", "train.accumulate"},
    {"gradient_checkpointing", "model.recompute"},
    {"gradient_clip_val", "optimizer.clip_norm"},
    {"hidden_size", "model.width"},
    {"horizontal_flip", "data.flip"},
    {"imgsz", "data.image_size"},
    {"img_size", "data.image_size"},
    {"logging_steps", "log.interval"},
    {"lr_scheduler", "schedule.name"},
    {"max_epochs", "train.epochs"},
    {"max_grad_norm", "optimizer.clip_norm"},
    {"micro_batch_size", "train.batch"},
    {"min_lr", "schedule.final"},
    {"mixed_precision", "train.precision"},
    {"n_embd", "model.width"},
    {"n_head", "model.heads"},
    {"n_layer", "model.layers"},
    {"num_classes", "model.classes"},
    {"num_epochs", "train.epochs"},
    {"num_heads", "model.heads"},
    {"num_layers", "model.layers"},
    {"num_train_epochs", "train.epochs"},
    {"num_threads", "train.threads"},
    {"output_dir", "run.out"},
    {"patch_size", "model.patch"},
    {"per_device_train_batch_size", "train.batch"},
    {"prefetch_factor", "loader.depth"},
    {"pretrained", "model.weights"},
    {"root", "data.dir"},
    {"save_dir", "run.out"},
    {"save_steps", "checkpoint.every"},
    {"save_total_limit", "checkpoint.keep_last"},
    {"scheduler", "schedule.name"},
    {"seq_len", "data.sequence"},
    {"sequence_length", "data.sequence"},
    {"std", "data.deviation"},
    {"train_batch_size", "train.batch"},
    {"vocab_size", "model.vocabulary"},
    {"warmup_steps", "schedule.warmup"},
    {"wd", "optimizer.weight_decay"}};

}  // namespace

std::string nearest_word(const std::string& word, const std::vector<std::string>& choices) {
  std::string best;
  std::size_t least = slack(word) + 1;
  for (const std::string& c : choices) {
    const std::size_t d = distance(folded(word), c);
    if (d < least) {
      least = d;
      best = c;
    }
  }
  return best;
}

std::string nearest(const std::string& path) {
  const std::size_t dot = path.find('.');
  const std::string section = dot == std::string::npos ? "" : folded(path.substr(0, dot));
  const std::string word = folded(dot == std::string::npos ? path : path.substr(dot + 1));
  std::string best;
  double least = double(slack(word)) + 1;
  const auto offer = [&](const std::string& name, const std::string& key) {
    if (std::max(word.size(), name.size()) - std::min(word.size(), name.size()) > slack(word)) {
      return;
    }
    // The key's own name counts most: the right key in the wrong section is near.
    const double d = double(distance(word, name));
    const double there =
        section.empty() ? 0 : double(distance(section, key.substr(0, key.find('.'))));
    if (d <= double(slack(word)) && d + 0.02 * there < least) {
      least = d + 0.02 * there;
      best = key;
    }
  };
  for (const Key& k : table()) {
    offer(k.path.substr(k.path.find('.') + 1), k.path);
  }
  for (const auto& [from, to] : aliases()) {
    offer(from.substr(from.find('.') + 1), to);
  }
  for (const auto& [from, to] : kForeign) {
    offer(from, to);
  }
  return best;
}

const std::vector<std::string>& sections() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> names;
    for (const Key& k : table()) {
      const std::string name = k.path.substr(0, k.path.find('.'));
      if (names.empty() || names.back() != name) {
        names.push_back(name);
      }
    }
    return names;
  }();
  return all;
}

std::string nearest_section(const std::string& word) {
  for (const std::string& s : sections()) {
    if (folded(word).starts_with(s)) {  // "training", "dataset"
      return s;
    }
  }
  return nearest_word(word, sections());
}

}  // namespace penstock::io::schema
