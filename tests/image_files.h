// Pictures for tests: made in memory with the libraries' encoders, every coding that they offer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>
// jpeglib.h needs <cstdio> before it.
#include <jpeglib.h>
#include <png.h>
#include <unistd.h>
#include <zlib.h>

namespace penstock::testing {

using Bytes = std::vector<std::byte>;

// Interleaved 8-bit samples.
struct Picture {
  int width = 0;
  int height = 0;
  int channels = 3;
  std::vector<std::uint8_t> data{};
};

// Smooth colours with some texture.
inline Picture make_picture(int width, int height, int channels = 3) {
  Picture p{width, height, channels, {}};
  std::uint32_t noise = 12345;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < channels; ++c) {
        noise = noise * 1664525u + 1013904223u;
        const int smooth = 40 + (x * (3 + c) + y * (5 - c)) * 160 / (5 * (width + height));
        p.data.push_back(std::uint8_t(smooth + int(noise >> 28) + ((x / 16 + y / 16) % 2) * 30));
      }
    }
  }
  return p;
}

inline Picture flat_picture(int width, int height, std::vector<std::uint8_t> pixel) {
  Picture p{width, height, int(pixel.size()), {}};
  for (int i = 0; i < width * height; ++i) {
    p.data.insert(p.data.end(), pixel.begin(), pixel.end());
  }
  return p;
}

struct JpegOptions {
  int quality = 90;
  bool progressive = false;
  bool arithmetic = false;
  int restart = 0;  // MCUs between restart markers
  int h = 2;        // luma sampling factors
  int v = 2;
  bool ycck = false;
  bool optimized = false;  // Huffman tables of its own
  int orientation = 0;     // 0: no EXIF
  bool intel = true;       // byte order of the EXIF block
};

inline Bytes exif_block(int orientation, bool intel) {
  const auto word = [intel](int v) {
    return intel ? std::string{char(v), char(v >> 8)} : std::string{char(v >> 8), char(v)};
  };
  std::string s = intel ? "II" : "MM";
  s += word(42);
  s += intel ? std::string("\x08\0\0\0", 4) : std::string("\0\0\0\x08", 4);
  s += word(1) + word(0x0112) + word(3);
  s += intel ? std::string("\x01\0\0\0", 4) : std::string("\0\0\0\x01", 4);
  s += word(orientation) + std::string(6, '\0');
  const auto* begin = reinterpret_cast<const std::byte*>(s.data());
  return {begin, begin + s.size()};
}

// libjpeg's default error handler ends the process: right for a test's own mistakes.
inline Bytes encode_jpeg(const Picture& p, const JpegOptions& o = {}) {
  jpeg_compress_struct c{};
  jpeg_error_mgr errors{};
  c.err = jpeg_std_error(&errors);
  jpeg_create_compress(&c);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&c, &memory, &size);
  c.image_width = JDIMENSION(p.width);
  c.image_height = JDIMENSION(p.height);
  c.input_components = p.channels;
  c.in_color_space = p.channels == 1 ? JCS_GRAYSCALE : p.channels == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_set_defaults(&c);
  if (o.ycck) {
    jpeg_set_colorspace(&c, JCS_YCCK);
  }
  jpeg_set_quality(&c, o.quality, TRUE);
  c.comp_info[0].h_samp_factor = o.h;
  c.comp_info[0].v_samp_factor = o.v;
  if (o.ycck) {
    c.comp_info[3].h_samp_factor = o.h;
    c.comp_info[3].v_samp_factor = o.v;
  }
  c.arith_code = o.arithmetic ? TRUE : FALSE;
  c.optimize_coding = o.optimized ? TRUE : FALSE;
  c.restart_interval = unsigned(o.restart);
  if (o.progressive) {
    jpeg_simple_progression(&c);
  }
  jpeg_start_compress(&c, TRUE);
  if (o.orientation > 0) {
    Bytes block = {std::byte('E'), std::byte('x'), std::byte('i'), std::byte('f'), {}, {}};
    const Bytes tiff = exif_block(o.orientation, o.intel);
    block.insert(block.end(), tiff.begin(), tiff.end());
    jpeg_write_marker(&c, JPEG_APP0 + 1, reinterpret_cast<const JOCTET*>(block.data()),
                      unsigned(block.size()));
  }
  for (int y = 0; y < p.height; ++y) {
    auto* row = const_cast<JSAMPROW>(p.data.data() + std::size_t(y * p.width * p.channels));
    jpeg_write_scanlines(&c, &row, 1);
  }
  jpeg_finish_compress(&c);
  jpeg_destroy_compress(&c);
  const auto* begin = reinterpret_cast<const std::byte*>(memory);
  Bytes out(begin, begin + size);
  std::free(memory);
  return out;
}

// The same coefficients in another coding.
inline Bytes transcode_jpeg(const Bytes& from, const JpegOptions& o) {
  jpeg_decompress_struct d{};
  jpeg_compress_struct c{};
  jpeg_error_mgr errors{};
  d.err = jpeg_std_error(&errors);
  c.err = d.err;
  jpeg_create_decompress(&d);
  jpeg_create_compress(&c);
  jpeg_mem_src(&d, reinterpret_cast<const unsigned char*>(from.data()), from.size());
  jpeg_read_header(&d, TRUE);
  jvirt_barray_ptr* coefficients = jpeg_read_coefficients(&d);
  jpeg_copy_critical_parameters(&d, &c);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&c, &memory, &size);
  c.arith_code = o.arithmetic ? TRUE : FALSE;
  c.restart_interval = unsigned(o.restart);
  if (o.progressive) {
    jpeg_simple_progression(&c);
  }
  jpeg_write_coefficients(&c, coefficients);
  jpeg_finish_compress(&c);
  jpeg_finish_decompress(&d);
  jpeg_destroy_compress(&c);
  jpeg_destroy_decompress(&d);
  const auto* begin = reinterpret_cast<const std::byte*>(memory);
  Bytes out(begin, begin + size);
  std::free(memory);
  return out;
}

struct PngOptions {
  int bits = 8;
  int color = PNG_COLOR_TYPE_RGB;
  bool interlaced = false;
  std::vector<png_color> palette{};
  std::vector<std::uint8_t> palette_alpha{};
  int orientation = 0;
};

// `data` holds the rows as the file stores them (16-bit values big-endian, bits packed).
inline Bytes encode_png(int width, int height, const std::vector<std::uint8_t>& data,
                        const PngOptions& o = {}) {
  Bytes out;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &out,
      [](png_structp p, png_bytep bytes, std::size_t count) {
        auto& to = *static_cast<Bytes*>(png_get_io_ptr(p));
        const auto* begin = reinterpret_cast<const std::byte*>(bytes);
        to.insert(to.end(), begin, begin + count);
      },
      nullptr);
  png_set_IHDR(png, info, png_uint_32(width), png_uint_32(height), o.bits, o.color,
               o.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_BASE,
               PNG_FILTER_TYPE_BASE);
  if (!o.palette.empty()) {
    png_set_PLTE(png, info, o.palette.data(), int(o.palette.size()));
  }
  if (!o.palette_alpha.empty()) {
    png_set_tRNS(png, info, const_cast<png_bytep>(o.palette_alpha.data()),
                 int(o.palette_alpha.size()), nullptr);
  }
  Bytes exif;
  if (o.orientation > 0) {
    exif = exif_block(o.orientation, false);
    png_set_eXIf_1(png, info, png_uint_32(exif.size()), reinterpret_cast<png_bytep>(exif.data()));
  }
  png_write_info(png, info);
  const std::size_t row = data.size() / std::size_t(height);
  std::vector<png_bytep> rows;
  for (int y = 0; y < height; ++y) {
    rows.push_back(const_cast<png_bytep>(data.data() + std::size_t(y) * row));
  }
  png_write_image(png, rows.data());
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return out;
}

// A PNG of a few bytes that states a size and holds no pixels.
inline Bytes hollow_png(std::uint32_t width, std::uint32_t height) {
  std::string s = "\x89PNG\r\n\x1a\n";
  const auto big = [](std::uint32_t v) {
    return std::string{char(v >> 24), char(v >> 16), char(v >> 8), char(v)};
  };
  const auto chunk = [&](const std::string& type, const std::string& body) {
    const std::string all = type + body;
    const auto sum = crc32(0, reinterpret_cast<const Bytef*>(all.data()), uInt(all.size()));
    s += big(std::uint32_t(body.size())) + all + big(std::uint32_t(sum));
  };
  chunk("IHDR", big(width) + big(height) + std::string("\x08\x02\0\0\0", 5));
  chunk("IDAT", std::string("\x78\x9c\x03\0\0\0\0\x01", 8));
  chunk("IEND", "");
  const auto* begin = reinterpret_cast<const std::byte*>(s.data());
  return {begin, begin + s.size()};
}

inline void write_bytes(const std::filesystem::path& path, const Bytes& bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), std::streamsize(bytes.size()));
}

inline Bytes read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string s((std::istreambuf_iterator<char>(file)), {});
  const auto* begin = reinterpret_cast<const std::byte*>(s.data());
  return {begin, begin + s.size()};
}

// A fresh folder that goes away with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "penstock_image_XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// The text of the exception that `body` throws, "" when it throws none of type E.
template <class E, class F>
std::string message_of(F&& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  return {};
}

}  // namespace penstock::testing
