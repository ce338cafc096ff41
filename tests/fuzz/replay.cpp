// A main() for compilers without libFuzzer: runs every seed, then mutations of them that the same
// seed of the generator repeats. replay [-runs=N] [-max_total_time=SECONDS] [-seed=N]
// FILE|FOLDER...
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::uint8_t>;
using Random = std::mt19937_64;

Bytes read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// From its own block of exactly this size, so that a sanitizer sees every step past the end.
void run(const Bytes& input) {
  const Bytes exact(input.begin(), input.end());
  (void)LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

std::size_t below(Random& random, std::size_t n) {
  return n == 0 ? 0 : std::size_t(random() % n);
}

void mutate(Bytes& b, const std::vector<Bytes>& seeds, Random& random) {
  static constexpr std::uint64_t kEdges[] = {0,
                                             1,
                                             0x7F,
                                             0x80,
                                             0xFF,
                                             0x7FFF,
                                             0xFFFF,
                                             0x7FFFFFFF,
                                             0xFFFFFFFF,
                                             ~std::uint64_t{0} >> 1,
                                             ~std::uint64_t{0}};
  const std::size_t at = below(random, b.size());
  const std::size_t length = std::min(b.size() - at, std::size_t{1} << below(random, 8));
  const auto begin = b.begin() + std::ptrdiff_t(at);
  switch (below(random, 8)) {
    case 0:
      if (!b.empty()) {
        b[at] = std::uint8_t(b[at] ^ (1u << below(random, 8)));
      }
      break;
    case 1:
      if (!b.empty()) {
        b[at] = std::uint8_t(random());
      }
      break;
    case 2: b.erase(begin, begin + std::ptrdiff_t(length)); break;
    case 3: b.insert(begin, length + 1, std::uint8_t(random())); break;
    case 4: {  // a number at the edge of its range
      const std::uint64_t edge = kEdges[below(random, std::size(kEdges))];
      const std::size_t width = std::min(b.size() - at, std::size_t{1} << below(random, 4));
      std::memcpy(b.data() + at, &edge, std::min<std::size_t>(width, 8));
      break;
    }
    case 5: {  // a piece of another seed
      const Bytes& other = seeds[below(random, seeds.size())];
      const std::size_t from = below(random, other.size());
      const auto source = other.begin() + std::ptrdiff_t(from);
      const std::size_t take = std::min(other.size() - from, std::size_t{1} << below(random, 8));
      b.insert(begin, source, source + std::ptrdiff_t(take));
      break;
    }
    case 6: {  // a piece twice
      const Bytes piece(begin, begin + std::ptrdiff_t(length));
      b.insert(b.begin() + std::ptrdiff_t(below(random, b.size() + 1)), piece.begin(), piece.end());
      break;
    }
    default: b.resize(at); break;
  }
}

}  // namespace

int main(int argc, char** argv) {
  long runs = 20'000;
  double seconds = 10;
  Random random(1);
  std::vector<Bytes> seeds;
  const auto load = [&](const fs::path& path) { seeds.push_back(read(path)); };
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg.starts_with("-runs=")) {
      runs = std::atol(arg.c_str() + 6);
    } else if (arg.starts_with("-max_total_time=")) {
      seconds = std::atof(arg.c_str() + 16);
    } else if (arg.starts_with("-seed=")) {
      random.seed(std::strtoull(arg.c_str() + 6, nullptr, 10));
    } else if (fs::is_directory(arg)) {
      std::vector<fs::path> files;
      for (const auto& entry : fs::directory_iterator(arg)) {
        files.push_back(entry.path());
      }
      std::sort(files.begin(), files.end());
      std::for_each(files.begin(), files.end(), load);
    } else {
      load(arg);
    }
  }
  if (seeds.empty()) {
    std::fprintf(stderr, "no seeds: an empty corpus shows nothing\n");
    return 1;
  }
  run({});
  for (const Bytes& seed : seeds) {
    run(seed);
  }
  const auto start = std::chrono::steady_clock::now();
  long done = 0;
  for (; done < runs; ++done) {
    Bytes input = seeds[below(random, seeds.size())];
    for (std::size_t changes = 1 + below(random, 6); changes-- > 0;) {
      mutate(input, seeds, random);
    }
    run(input);
    const auto spent = std::chrono::steady_clock::now() - start;
    if (std::chrono::duration<double>(spent).count() > seconds) {
      break;
    }
  }
  std::printf("%zu seeds, %ld mutations\n", seeds.size(), done);
  return 0;
}
