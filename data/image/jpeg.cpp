// JPEG through libjpeg-turbo's classic interface, which alone can decode a region.
#include <cstddef>
#include <cstdio>
// jpeglib.h needs the two above.
#include <jerror.h>
#include <jpeglib.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstring>

#include "data/image/codec.h"
#include "data/image/exif.h"
#include "data/image/jpeg_scan.h"
#include "data/image/name.h"
#include "framework/core/check.h"

namespace penstock::data::image {
namespace {

// A progressive file may repeat scans without end; encoders write about ten.
constexpr int kMaxScans = 256;
// Chroma interpolation looks one pixel to each side of the region; the library repeats the edge
// where a region ends. With this margin a region equals the same part of a full decode.
constexpr i64 kMargin = 2;
constexpr int kRowsPerCall = 16;

// The head of the library's entropy decoder (jpegint.h, which is not installed); the same from
// libjpeg 6b to libjpeg-turbo 3. Its second member is where our own decoder of baseline scans is
// put.
struct EntropyDecoder {
  void (*start_pass)(j_decompress_ptr);
  boolean (*decode_mcu)(j_decompress_ptr, JBLOCKROW*);
};
#if defined(LIBJPEG_TURBO_VERSION_NUMBER) && LIBJPEG_TURBO_VERSION_NUMBER >= 1005000 && \
    LIBJPEG_TURBO_VERSION_NUMBER < 4000000
constexpr bool kOwnEntropyDecoder = true;
#else
constexpr bool kOwnEntropyDecoder = false;
#endif

// Everything that a library call may touch. Plain data only: an error jumps over these frames.
struct Session {
  jpeg_decompress_struct decompress;
  jpeg_error_mgr errors;
  jpeg_source_mgr source;
  jpeg_progress_mgr progress;
  std::jmp_buf on_error;
  char message[JMSG_LENGTH_MAX];
  bool strict;
  bool too_many_scans;
  const JOCTET* end_of_file;
  JpegScan* scan;  // decodes the entropy-coded data; null: the library does
  const JOCTET* scan_begin;
  // Arguments of read_region(): stored region at the reduced scale.
  JDIMENSION x, y, width, height;
  JDIMENSION crop_x, crop_width;  // what the library makes of x and width
  JHUFF_TBL standard_dc[2], standard_ac[2];
  std::uint8_t* out;
  std::size_t stride;
};

Session& session_of(j_common_ptr common) {
  return *static_cast<Session*>(common->client_data);
}

[[noreturn]] void leave(Session& s) {
  s.errors.format_message(reinterpret_cast<j_common_ptr>(&s.decompress), s.message);
  std::longjmp(s.on_error, 1);
}

void on_error_exit(j_common_ptr common) {
  leave(session_of(common));
}

void on_message(j_common_ptr common, int level) {
  if (level < 0) {
    ++common->err->num_warnings;
    if (session_of(common).strict) {
      leave(session_of(common));
    }
  }
}

void on_output(j_common_ptr) {}

void on_progress(j_common_ptr common) {
  Session& s = session_of(common);
  if (s.decompress.input_scan_number > kMaxScans) {
    s.too_many_scans = true;
    std::longjmp(s.on_error, 1);
  }
}

void source_init(j_decompress_ptr) {}

// The whole file is one buffer: being asked for more means that it is cut.
boolean source_fill(j_decompress_ptr decompress) {
  static constexpr JOCTET kEnd[2] = {0xFF, JPEG_EOI};
  WARNMS(decompress, JWRN_JPEG_EOF);
  decompress->src->next_input_byte = kEnd;
  decompress->src->bytes_in_buffer = 2;
  return TRUE;
}

void source_skip(j_decompress_ptr decompress, long count) {
  jpeg_source_mgr& source = *decompress->src;
  if (count <= 0) {
    return;
  }
  if (std::size_t(count) > source.bytes_in_buffer) {
    source_fill(decompress);
    return;
  }
  source.next_input_byte += count;
  source.bytes_in_buffer -= std::size_t(count);
}

void source_end(j_decompress_ptr) {}

boolean on_decode_mcu(j_decompress_ptr decompress, JBLOCKROW* blocks) {
  Session& s = session_of(reinterpret_cast<j_common_ptr>(decompress));
  if (!s.scan->decode(blocks)) {
    std::strncpy(s.message, "damaged or cut entropy-coded data", sizeof s.message);
    std::longjmp(s.on_error, 1);
  }
  return TRUE;
}

// Runs `body`; false when the library reported an error, whose text is then in s.message.
// Neither this frame nor those below may hold objects with destructors.
[[gnu::noinline]] bool guarded(Session& s, void (*body)(Session&)) {
  if (setjmp(s.on_error) != 0) {
    return false;
  }
  body(s);
  return true;
}

// The library keeps tables from file to file. A picture must not depend on those decoded before, so
// every slot exists from the start and reset_tables() makes all files begin alike.
void create(Session& s) {
  jpeg_create_decompress(&s.decompress);
  const auto common = reinterpret_cast<j_common_ptr>(&s.decompress);
  for (int i = 0; i < NUM_HUFF_TBLS; ++i) {
    s.decompress.dc_huff_tbl_ptrs[i] = jpeg_alloc_huff_table(common);
    s.decompress.ac_huff_tbl_ptrs[i] = jpeg_alloc_huff_table(common);
  }
  for (JQUANT_TBL*& table : s.decompress.quant_tbl_ptrs) {
    table = jpeg_alloc_quant_table(common);
  }
  // The standard's example tables, which files without tables mean; from an encoder's defaults.
  jpeg_compress_struct encoder{};
  encoder.err = &s.errors;
  encoder.client_data = &s;
  jpeg_create_compress(&encoder);
  encoder.in_color_space = JCS_RGB;
  encoder.input_components = 3;
  jpeg_set_defaults(&encoder);
  for (int i = 0; i < 2; ++i) {
    s.standard_dc[i] = *encoder.dc_huff_tbl_ptrs[i];
    s.standard_ac[i] = *encoder.ac_huff_tbl_ptrs[i];
  }
  jpeg_destroy_compress(&encoder);
}

void reset_tables(Session& s) {
  for (int i = 0; i < NUM_HUFF_TBLS; ++i) {
    *s.decompress.dc_huff_tbl_ptrs[i] = i < 2 ? s.standard_dc[i] : JHUFF_TBL{};
    *s.decompress.ac_huff_tbl_ptrs[i] = i < 2 ? s.standard_ac[i] : JHUFF_TBL{};
  }
  for (JQUANT_TBL* table : s.decompress.quant_tbl_ptrs) {
    *table = {};
  }
}

// Quantisation steps are at least 1: a zero is a table that the file did not bring, or a broken
// one.
bool has_quantisation(const jpeg_decompress_struct& d) {
  for (int c = 0; c < d.num_components; ++c) {
    const JQUANT_TBL* table = d.comp_info[c].quant_table;
    if (table == nullptr || std::find(std::begin(table->quantval), std::end(table->quantval), 0) !=
                                std::end(table->quantval)) {
      return false;
    }
  }
  return true;
}

// Whether the picture is one scan of baseline or extended sequential Huffman coding.
bool describe_scan(const jpeg_decompress_struct& d, ScanLayout& layout) {
  if (d.progressive_mode == TRUE || d.arith_code == TRUE || d.data_precision != 8 ||
      d.comps_in_scan != d.num_components || d.blocks_in_MCU > ScanLayout::kMaxBlocks ||
      d.comps_in_scan > ScanLayout::kMaxComponents || d.Ss != 0 || d.Se != DCTSIZE2 - 1 ||
      d.Ah != 0 || d.Al != 0) {
    return false;
  }
  layout.blocks = d.blocks_in_MCU;
  layout.components = d.comps_in_scan;
  layout.restart_interval = d.restart_interval;
  layout.mcus = i64(d.MCUs_per_row) * d.MCU_rows_in_scan;
  for (int b = 0; b < d.blocks_in_MCU; ++b) {
    layout.component[std::size_t(b)] = d.MCU_membership[b];
  }
  for (int c = 0; c < d.comps_in_scan; ++c) {
    const jpeg_component_info& info = *d.cur_comp_info[c];
    const JHUFF_TBL& dc = *d.dc_huff_tbl_ptrs[info.dc_tbl_no];
    const JHUFF_TBL& ac = *d.ac_huff_tbl_ptrs[info.ac_tbl_no];
    layout.dc[std::size_t(c)] = {dc.bits, dc.huffval};
    layout.ac[std::size_t(c)] = {ac.bits, ac.huffval};
  }
  return true;
}

void read_header(Session& s) {
  jpeg_read_header(&s.decompress, TRUE);
}

void start(Session& s) {
  jpeg_start_decompress(&s.decompress);
  s.crop_x = s.x;
  s.crop_width = s.width;
  if (s.width < s.decompress.output_width) {
    jpeg_crop_scanline(&s.decompress, &s.crop_x, &s.crop_width);
  }
}

void read_region(Session& s) {
  jpeg_decompress_struct& d = s.decompress;
  const bool to_the_end = s.y + s.height == d.output_height;
  if (s.y > 0) {
    jpeg_skip_scanlines(&d, s.y);
  }
  JSAMPROW rows[kRowsPerCall];
  for (JDIMENSION done = 0; done < s.height;) {
    const JDIMENSION count = std::min<JDIMENSION>(kRowsPerCall, s.height - done);
    for (JDIMENSION i = 0; i < count; ++i) {
      rows[i] = s.out + std::size_t(done + i) * s.stride;
    }
    done += jpeg_read_scanlines(&d, rows, count);
  }
  if (to_the_end) {
    if (s.scan != nullptr) {
      // The library goes on at the marker behind the scan.
      const i64 end = s.scan->end();
      if (end < 0) {
        std::strncpy(s.message, "extraneous bytes behind the last pixels", sizeof s.message);
        std::longjmp(s.on_error, 1);
      }
      d.src->next_input_byte = s.scan_begin + end;
      d.src->bytes_in_buffer = std::size_t(s.end_of_file - d.src->next_input_byte);
    }
    jpeg_finish_decompress(&d);
  } else {
    jpeg_abort_decompress(&d);
  }
}

// C M Y K, inverted, to R G B in place: the output is shorter than the input.
void cmyk_to_rgb(std::uint8_t* row, i64 width) {
  const auto scaled = [](unsigned a, unsigned b) {
    const unsigned t = a * b + 128;
    return std::uint8_t((t + (t >> 8)) >> 8);  // round(a b / 255)
  };
  for (i64 i = 0; i < width; ++i) {
    const std::uint8_t* in = row + 4 * i;
    const unsigned k = in[3];
    const std::uint8_t rgb[3] = {scaled(in[0], k), scaled(in[1], k), scaled(in[2], k)};
    std::memcpy(row + 3 * i, rgb, 3);
  }
}

void rgb_to_luma(std::uint8_t* row, i64 width) {
  for (i64 i = 0; i < width; ++i) {
    const std::uint8_t* in = row + 3 * i;
    row[i] = std::uint8_t((19595u * in[0] + 38470u * in[1] + 7471u * in[2] + 32768u) >> 16);
  }
}

// Bytes that a multi-scan file's coefficients take; one-scan files are decoded row by row.
i64 coefficient_bytes(const jpeg_decompress_struct& d) {
  i64 blocks = 0;
  for (int c = 0; c < d.num_components; ++c) {
    const jpeg_component_info& info = d.comp_info[c];
    // Rounded up to whole MCUs, as the library allocates them.
    blocks += (i64(info.width_in_blocks) + info.h_samp_factor) *
              (i64(info.height_in_blocks) + info.v_samp_factor);
  }
  return blocks * i64(sizeof(JBLOCK));
}

}  // namespace

struct JpegCodec::State {
  Session session{};
  JpegScan scan;
  std::string name;
  DecodeOptions options;
  bool open = false;

  [[noreturn]] void refuse(const char* what) {
    jpeg_abort_decompress(&session.decompress);
    open = false;
    if (session.too_many_scans) {
      throw DataError(
          format("{}: JPEG {}: more than {} scans", quoted_name(name), what, kMaxScans));
    }
    throw DataError(format("{}: JPEG {}: {}", quoted_name(name), what,
                           static_cast<const char*>(session.message)));
  }
};

JpegCodec::JpegCodec() : state_(std::make_unique<State>()) {
  Session& s = state_->session;
  s.decompress.err = jpeg_std_error(&s.errors);
  s.errors.error_exit = on_error_exit;
  s.errors.emit_message = on_message;
  s.errors.output_message = on_output;
  s.decompress.client_data = &s;
  if (!guarded(s, create)) {
    throw Error(format("JPEG decoder: {}", static_cast<const char*>(s.message)));
  }
  s.decompress.client_data = &s;
  s.source.init_source = source_init;
  s.source.fill_input_buffer = source_fill;
  s.source.skip_input_data = source_skip;
  s.source.resync_to_restart = jpeg_resync_to_restart;
  s.source.term_source = source_end;
  s.progress.progress_monitor = on_progress;
  s.decompress.progress = &s.progress;
}

JpegCodec::~JpegCodec() {
  jpeg_destroy_decompress(&state_->session.decompress);
}

StoredHeader JpegCodec::open(std::span<const std::byte> file, std::string_view name,
                             const DecodeOptions& options) {
  State& state = *state_;
  Session& s = state.session;
  jpeg_abort_decompress(&s.decompress);
  state.name.assign(name);
  state.options = options;
  state.open = false;
  s.strict = options.strict;
  s.too_many_scans = false;
  s.errors.num_warnings = 0;
  s.source.next_input_byte = reinterpret_cast<const JOCTET*>(file.data());
  s.source.bytes_in_buffer = file.size();
  s.end_of_file = s.source.next_input_byte + file.size();
  s.decompress.src = &s.source;
  s.scan = nullptr;
  reset_tables(s);
  if (!guarded(s, read_header)) {
    state.refuse("header");
  }
  check_size(name, s.decompress.image_width, s.decompress.image_height, options.limits);
  state.open = true;
  return {.width = s.decompress.image_width,
          .height = s.decompress.image_height,
          .orientation = options.apply_orientation ? jpeg_orientation(file) : 1};
}

Pixels JpegCodec::decode(const Region& region, int reduce, Scratch& out) {
  State& state = *state_;
  Session& s = state.session;
  jpeg_decompress_struct& d = s.decompress;
  check(state.open, "JPEG decode: no picture is open");

  // A file that ends early is refused even when the region lies above the cut. Entropy-coded data
  // never holds FF D9, so any after the first scan's header is the real end.
  if (state.options.strict) {
    const JOCTET* last = s.end_of_file - 1;
    while (last > s.source.next_input_byte && !(last[-1] == 0xFF && last[0] == JPEG_EOI)) {
      --last;
    }
    if (last <= s.source.next_input_byte) {
      std::strncpy(s.message, "the file is cut: it has no end marker", sizeof s.message);
      state.refuse("decode");
    }
  }

  d.scale_num = 1;
  d.scale_denom = unsigned(reduce);
  d.dct_method = state.options.fast ? JDCT_IFAST : JDCT_ISLOW;
  d.do_fancy_upsampling = state.options.fast ? FALSE : TRUE;
  // Smoothing guesses at coefficients that a complete file has, and looks across a region's edge.
  d.do_block_smoothing = FALSE;
  const bool four = d.jpeg_color_space == JCS_CMYK || d.jpeg_color_space == JCS_YCCK;
  const bool gray = state.options.channels == 1;
  const bool direct_luma =
      gray && (d.jpeg_color_space == JCS_YCbCr || d.jpeg_color_space == JCS_GRAYSCALE);
  if (d.jpeg_color_space == JCS_UNKNOWN) {
    std::strncpy(s.message, "components are neither gray, colour nor CMYK", sizeof s.message);
    state.refuse("decode");
  }
  d.out_color_space = four ? JCS_CMYK : direct_luma ? JCS_GRAYSCALE : JCS_RGB;
  const int decoded_channels = four ? 4 : direct_luma ? 1 : 3;

  // The region at the reduced scale, with its margin.
  const i64 scaled_width = (i64(d.image_width) + reduce - 1) / reduce;
  const i64 scaled_height = (i64(d.image_height) + reduce - 1) / reduce;
  const i64 left = std::max<i64>(0, region.x / reduce - kMargin);
  const i64 right =
      std::min(scaled_width, (region.x + region.width + reduce - 1) / reduce + kMargin);
  const i64 top = region.y / reduce;
  const i64 bottom = std::min(scaled_height, (region.y + region.height + reduce - 1) / reduce);
  s.x = JDIMENSION(left);
  s.y = JDIMENSION(top);
  s.width = JDIMENSION(right - left);
  s.height = JDIMENSION(bottom - top);

  // The library widens the region to the left by less than an MCU.
  constexpr i64 kMcuWidth = 32;
  const i64 most = (right - left + kMcuWidth) * decoded_channels * (bottom - top);
  const bool many_scans = jpeg_has_multiple_scans(&d) == TRUE;
  check_bytes(state.name, most + (many_scans ? coefficient_bytes(d) : 0), state.options.limits);
  if (!guarded(s, start)) {
    state.refuse("decode");
  }
  if (!has_quantisation(d)) {
    std::strncpy(s.message, "a quantisation table is missing or holds zeros", sizeof s.message);
    state.refuse("decode");
  }
  ScanLayout layout;
  s.scan_begin = d.src->next_input_byte;
  if (kOwnEntropyDecoder && state.options.strict && !many_scans && describe_scan(d, layout) &&
      state.scan.start(layout, {s.scan_begin, d.src->bytes_in_buffer})) {
    s.scan = &state.scan;
    reinterpret_cast<EntropyDecoder*>(d.entropy)->decode_mcu = on_decode_mcu;
  }
  s.stride = std::size_t(s.crop_width) * std::size_t(decoded_channels);
  const std::size_t bytes = s.stride * s.height;
  if (out.size() < bytes) {
    out.resize(bytes);
  }
  s.out = out.data();
  if (!guarded(s, read_region)) {
    state.refuse("decode");
  }
  state.open = false;

  for (i64 row = 0; four && row < i64(s.height); ++row) {
    cmyk_to_rgb(s.out + std::size_t(row) * s.stride, s.crop_width);
  }
  for (i64 row = 0; gray && !direct_luma && row < i64(s.height); ++row) {
    rgb_to_luma(s.out + std::size_t(row) * s.stride, s.crop_width);
  }
  return {.data = s.out,
          .stride = i64(s.stride),
          .width = i64(s.crop_width),
          .height = i64(s.height),
          .channels = state.options.channels,
          .scale = reduce,
          .x = i64(s.crop_x) * reduce,
          .y = i64(s.y) * reduce};
}

}  // namespace penstock::data::image
