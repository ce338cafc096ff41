// Public datasheet figures, each from the vendor's own document: dense rates (half of the figure
// "with sparsity" where that is the one printed), 32-bit accumulation, decimal units.
//   A100 datasheet (us-nvidia-1758950-r4) and Ampere architecture whitepaper: 19.5 / 156 / 312 /
//     312 TFLOP/s, 1,555 GB/s (40 GB) and 2,039 GB/s (80 GB SXM), 108 SMs.
//   H100 datasheet and Hopper architecture whitepaper (SXM5): 66.9 / 494.7 / 989.4 / 989.4
//     TFLOP/s, 3.35 TB/s, 132 SMs. H200 datasheet: the same arithmetic, 141 GB, 4.8 TB/s.
//   GA102 architecture whitepaper (V2), appendix A, RTX 3090: 35.6 / 35.6 / 71 / 71, 936 GB/s, 82.
//   Ada architecture whitepaper, appendix A, RTX 4090: 82.6 / 82.6 / 165.2 / 165.2, 1,008 GB/s,
//   128. L4 datasheet: 30.3 / 60 / 121 / 121 (printed with sparsity: 120, 242), 300 GB/s, 24 GB;
//   7,424
//     cores are 58 SMs.
//   T4 datasheet and Turing architecture whitepaper: 8.1 / none / 65 / none, 320 GB/s, 16 GB, 40.
#include <algorithm>
#include <cctype>

#include "framework/measure/ceilings.h"

namespace penstock::measure {
namespace {

// Shares of the datasheet that a triad (0.90 on an H200, 0.8 to 0.93 quoted elsewhere) and a large
// product on random data (708 of 989 TFLOP/s on an H200) reach.
constexpr double kAssumedBandwidth = 0.88;
constexpr double kAssumedMatmul = 0.72;

// Lower-case words and numbers of a device name: "NVIDIA A100-SXM4-80GB" -> nvidia a 100 sxm 4 80
// gb.
std::vector<std::string> words(const std::string& name) {
  std::vector<std::string> out;
  int kind = 0;  // of the character before: 1 letter, 2 digit
  for (const char c : name) {
    const auto u = static_cast<unsigned char>(c);
    const int now = std::isalpha(u) != 0 ? 1 : std::isdigit(u) != 0 ? 2 : 0;
    if (now != 0) {
      if (now != kind) {
        out.emplace_back();
      }
      out.back() += char(std::tolower(u));
    }
    kind = now;
  }
  return out;
}

}  // namespace

const std::vector<DeviceSheet>& device_sheets() {
  static const std::vector<DeviceSheet> sheets = {
      {"A100 40GB", 1555e9, 40e9, 108, {19.5e12, 156e12, 312e12, 312e12}, "A100 datasheet"},
      {"A100 80GB", 2039e9, 80e9, 108, {19.5e12, 156e12, 312e12, 312e12}, "A100 datasheet, SXM"},
      {"H100 80GB",
       3350e9,
       80e9,
       132,
       {66.9e12, 494.7e12, 989.4e12, 989.4e12},
       "H100 datasheet, SXM"},
      {"H200", 4800e9, 141e9, 132, {66.9e12, 494.7e12, 989.4e12, 989.4e12}, "H200 datasheet"},
      {"RTX 3090", 936e9, 24e9, 82, {35.6e12, 35.6e12, 71e12, 71e12}, "GA102 whitepaper"},
      {"RTX 4090", 1008e9, 24e9, 128, {82.6e12, 82.6e12, 165.2e12, 165.2e12}, "Ada whitepaper"},
      {"L4", 300e9, 24e9, 58, {30.3e12, 60e12, 121e12, 121e12}, "L4 datasheet"},
      {"T4", 320e9, 16e9, 40, {8.1e12, 0, 65e12, 0}, "T4 datasheet"},
  };
  return sheets;
}

const DeviceSheet* find_device_sheet(const std::string& name) {
  const auto asked = words(name.substr(0, 128));
  const auto has = [](const std::vector<std::string>& in, const std::string& word) {
    return std::find(in.begin(), in.end(), word) != in.end();
  };
  const DeviceSheet* best = nullptr;
  std::size_t best_score = 0;
  bool tied = false;
  for (const DeviceSheet& sheet : device_sheets()) {
    const auto own = words(sheet.name);
    // The model's letters and number must be there, side by side; the memory size decides between
    // variants of one model.
    const auto model = std::search(asked.begin(), asked.end(), own.begin(), own.begin() + 2);
    if (model == asked.end()) {
      continue;
    }
    std::size_t score = 2;
    for (std::size_t i = 2; i < own.size(); ++i) {
      score += has(asked, own[i]) ? 1 : 0;
    }
    if (score > best_score) {
      best = &sheet;
      best_score = score;
      tied = false;
    } else if (score == best_score) {
      tied = true;
    }
  }
  return tied ? nullptr : best;
}

Ceilings assumed_ceilings(const DeviceSheet& sheet) {
  Ceilings c{.bytes_per_second = kAssumedBandwidth * sheet.bytes_per_second,
             .source = "assumed from a datasheet"};
  for (std::size_t p = 0; p < kPrecisions; ++p) {
    if (sheet.flops[p] > 0) {
      c.flops[p] = kAssumedMatmul * sheet.flops[p];
    }
  }
  return c;
}

}  // namespace penstock::measure
