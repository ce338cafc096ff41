// A program of somebody else's: a tensor, a product, a file, with nothing but the installed tree.
#include <cstdio>
#include <vector>

#include "penstock/framework/core/device.h"
#include "penstock/framework/io/safetensors_weights.h"
#include "penstock/framework/ops/linear.h"

using namespace penstock;

int main(int, char** argv) {
  const Tensor x = Tensor::from(std::vector<float>{1, 2, 3, 4}, {2, 2}, kCpu);
  const Tensor w = Tensor::from(std::vector<float>{1, 0, 1, 1}, {2, 2}, kCpu);
  const Tensor y = ops::linear(x, w, {});
  const std::vector<io::NamedTensor> saved = {{.name = "y", .tensor = y}};
  try {
    io::save_weights(std::string(argv[1]) + "/y.safetensors", saved);
    const io::SafetensorsFile file(std::string(argv[1]) + "/y.safetensors");
    std::vector<float> got(4);
    file.read(*file.find("y"), 0, 4, DType::f32, got.data());
    std::printf("%g %g %g %g\n", got[0], got[1], got[2], got[3]);
  } catch (const Error& e) {  // types cross the library's border
    std::printf("%s\n", e.what());
    return int(e.code());
  }
}
