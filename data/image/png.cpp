// PNG through libpng.
#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstring>

#include "data/image/codec.h"
#include "data/image/exif.h"
#include "data/image/name.h"
#include "framework/core/check.h"

namespace penstock::data::image {
namespace {

constexpr std::size_t kMessage = 200;

// Everything that a library call may touch. Plain data only: an error jumps over these frames.
struct Session {
  png_structp png;
  png_infop info;
  const std::uint8_t* next;
  std::size_t left;
  char message[kMessage];
  // Arguments of the bodies below.
  png_uint_32 width, height;
  std::size_t row_bytes;
  int channels;
  int passes;
  bool gray;
  png_uint_32 x, y, region_width, region_height;
  std::uint8_t* row;  // one decoded row, or the whole picture when interlaced
  std::uint8_t* out;  // the region
};

void on_error(png_structp png, png_const_charp text) {
  auto& s = *static_cast<Session*>(png_get_error_ptr(png));
  std::strncpy(s.message, text, kMessage - 1);
  png_longjmp(png, 1);
}

// Warnings concern metadata that is not used here; damaged pixels are errors.
void on_warning(png_structp, png_const_charp) {}

void on_read(png_structp png, png_bytep to, std::size_t count) {
  auto& s = *static_cast<Session*>(png_get_io_ptr(png));
  if (count > s.left) {
    png_error(png, "the file is cut");
  }
  std::memcpy(to, s.next, count);
  s.next += count;
  s.left -= count;
}

// Neither this frame nor those below may hold objects with destructors.
[[gnu::noinline]] bool guarded(Session& s, void (*body)(Session&)) {
  if (setjmp(png_jmpbuf(s.png)) != 0) {
    return false;
  }
  body(s);
  return true;
}

void read_header(Session& s) {
  constexpr png_uint_32 kLargest = 0x7FFFFFFF;  // the pixel limit is ours, checked afterwards
  png_set_user_limits(s.png, kLargest, kLargest);
  png_set_chunk_cache_max(s.png, 64);
  png_set_chunk_malloc_max(s.png, png_alloc_size_t{8} << 20);
  png_set_read_fn(s.png, &s, on_read);
  // Profiles, text and the like are passed over unread.
  png_set_keep_unknown_chunks(s.png, PNG_HANDLE_CHUNK_NEVER, nullptr, 0);
  // EXIF too: the library would allocate whatever length such a chunk states.
  static constexpr png_byte kUnused[] =
      "iCCP\0iTXt\0tEXt\0zTXt\0sPLT\0hIST\0pCAL\0sCAL\0tIME\0gAMA\0cHRM\0sRGB\0eXIf";
  png_set_keep_unknown_chunks(s.png, PNG_HANDLE_CHUNK_NEVER, kUnused, 13);
  png_read_info(s.png, s.info);
  s.width = png_get_image_width(s.png, s.info);
  s.height = png_get_image_height(s.png, s.info);
}

void prepare(Session& s) {
  png_set_expand(s.png);    // palette to RGB, gray below 8 bits to 8, transparency to alpha
  png_set_scale_16(s.png);  // round(v / 257)
  png_set_strip_alpha(s.png);
  if (!s.gray) {
    png_set_gray_to_rgb(s.png);
  }
  s.passes = png_set_interlace_handling(s.png);
  png_read_update_info(s.png, s.info);
  s.row_bytes = png_get_rowbytes(s.png, s.info);
  s.channels = png_get_channels(s.png, s.info);
}

void read_region(Session& s) {
  const std::size_t pixel = std::size_t(s.channels);
  const auto copy = [&s, pixel](const std::uint8_t* row, png_uint_32 y) {
    if (y >= s.y && y < s.y + s.region_height) {
      std::memcpy(s.out + std::size_t(y - s.y) * s.region_width * pixel, row + s.x * pixel,
                  s.region_width * pixel);
    }
  };
  if (s.passes == 1) {
    // Rows below the region are inflated all the same: only the stream's end proves it whole.
    for (png_uint_32 y = 0; y < s.height; ++y) {
      png_read_row(s.png, s.row, nullptr);
      copy(s.row, y);
    }
  } else {
    for (int pass = 0; pass < s.passes; ++pass) {
      for (png_uint_32 y = 0; y < s.height; ++y) {
        png_read_row(s.png, s.row + std::size_t(y) * s.row_bytes, nullptr);
      }
    }
    for (png_uint_32 y = s.y; y < s.y + s.region_height; ++y) {
      copy(s.row + std::size_t(y) * s.row_bytes, y);
    }
  }
  png_read_end(s.png, nullptr);
}

}  // namespace

struct PngCodec::State {
  Session session{};
  std::string name;
  DecodeOptions options;
  Scratch row;

  void close() {
    if (session.png != nullptr) {
      png_destroy_read_struct(&session.png, &session.info, nullptr);
    }
  }
  [[noreturn]] void refuse(const char* what) {
    close();
    throw DataError(format("{}: PNG {}: {}", quoted_name(name), what,
                           static_cast<const char*>(session.message)));
  }
};

PngCodec::PngCodec() : state_(std::make_unique<State>()) {}
PngCodec::~PngCodec() {
  state_->close();
}

StoredHeader PngCodec::open(std::span<const std::byte> file, std::string_view name,
                            const DecodeOptions& options) {
  State& state = *state_;
  Session& s = state.session;
  state.close();
  state.name.assign(name);
  state.options = options;
  s = {};
  s.next = reinterpret_cast<const std::uint8_t*>(file.data());
  s.left = file.size();
  s.gray = options.channels == 1;
  s.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &s, on_error, on_warning);
  check(s.png != nullptr, "PNG decoder: the library could not be set up");
  s.info = png_create_info_struct(s.png);
  check(s.info != nullptr, "PNG decoder: the library could not be set up");
  if (!guarded(s, read_header)) {
    state.refuse("header");
  }
  check_size(name, s.width, s.height, options.limits);
  return {.width = s.width,
          .height = s.height,
          .orientation = options.apply_orientation ? png_orientation(file) : 1};
}

Pixels PngCodec::decode(const Region& region, Scratch& out) {
  State& state = *state_;
  Session& s = state.session;
  check(s.png != nullptr, "PNG decode: no picture is open");
  if (!guarded(s, prepare)) {
    state.refuse("decode");
  }
  const bool whole = s.passes > 1;
  const i64 row_bytes = i64(s.row_bytes) * (whole ? i64(s.height) : 1);
  const i64 region_bytes = region.width * region.height * s.channels;
  check_bytes(state.name, row_bytes + region_bytes, state.options.limits);
  constexpr std::size_t kKeepBytes = std::size_t{64} << 20;
  if (state.row.size() > kKeepBytes) {
    Scratch().swap(state.row);
  }
  if (i64(state.row.size()) < row_bytes) {
    state.row.resize(std::size_t(row_bytes));
  }
  if (i64(out.size()) < region_bytes) {
    out.resize(std::size_t(region_bytes));
  }
  s.row = state.row.data();
  s.out = out.data();
  s.x = png_uint_32(region.x);
  s.y = png_uint_32(region.y);
  s.region_width = png_uint_32(region.width);
  s.region_height = png_uint_32(region.height);
  if (!guarded(s, read_region)) {
    state.refuse("decode");
  }
  const int channels = s.channels;
  state.close();
  // Colour to luma where one channel is wanted; rows shrink towards the front, in place.
  if (state.options.channels == 1 && channels == 3) {
    for (i64 i = 0; i < region.width * region.height; ++i) {
      const std::uint8_t* in = out.data() + 3 * i;
      out[std::size_t(i)] =
          std::uint8_t((19595u * in[0] + 38470u * in[1] + 7471u * in[2] + 32768u) >> 16);
    }
  }
  return {.data = out.data(),
          .stride = region.width * state.options.channels,
          .width = region.width,
          .height = region.height,
          .channels = state.options.channels,
          .scale = 1,
          .x = region.x,
          .y = region.y};
}

}  // namespace penstock::data::image
