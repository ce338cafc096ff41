// Decoding: every coding of JPEG and PNG, regions, orientation, damage and limits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "data/image/decode.h"
#include "data/image/exif.h"
#include "framework/core/check.h"
#include "framework/core/machine.h"
#include "tests/image_files.h"

namespace penstock::data::image {
namespace {

using namespace penstock::testing;

struct Decoded {
  i64 width = 0;
  i64 height = 0;
  std::vector<std::uint8_t> data;
  bool operator==(const Decoded&) const = default;
};

// The region's pixels alone, densely.
Decoded dense(const Pixels& p, const Region& region) {
  Decoded out{region.width, region.height, {}};
  for (i64 y = 0; y < region.height; ++y) {
    const std::uint8_t* row =
        p.data + (region.y - p.y + y) * p.stride + (region.x - p.x) * p.channels;
    out.data.insert(out.data.end(), row, row + region.width * p.channels);
  }
  return out;
}

Decoded decode(const Bytes& file, const DecodeOptions& options = {}) {
  Decoder decoder;
  const Header header = decoder.open(file, "test file", options);
  const Region whole{0, 0, header.width, header.height};
  return dense(decoder.decode(whole), whole);
}

int difference(const Decoded& a, const Decoded& b) {
  EXPECT_EQ(a.data.size(), b.data.size());
  int most = 0;
  for (std::size_t i = 0; i < std::min(a.data.size(), b.data.size()); ++i) {
    most = std::max(most, std::abs(int(a.data[i]) - int(b.data[i])));
  }
  return most;
}

Bytes cut(const Bytes& file, double share) {
  return {file.begin(), file.begin() + std::ptrdiff_t(double(file.size()) * share)};
}

Bytes text_bytes(std::string_view text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

TEST(ImageDecode, CodecFollowsFromTheFirstBytes) {
  EXPECT_EQ(detect(encode_jpeg(make_picture(8, 8))), Codec::kJpeg);
  EXPECT_EQ(detect(hollow_png(1, 1)), Codec::kPng);
  EXPECT_EQ(detect(text_bytes("GIF89a")), Codec::kUnknown);
  EXPECT_EQ(detect({}), Codec::kUnknown);
  const auto open = [](const Bytes& bytes) {
    return message_of<DataError>([&] { Decoder().open(bytes, "a \"b\n.jpg", {}); });
  };
  EXPECT_EQ(open({}), R"("a \"b\n.jpg": the file is empty)");
  EXPECT_NE(open(text_bytes("hello, world")).find("neither a JPEG nor a PNG"), std::string::npos);
}

// Case 92.
TEST(ImageDecode, EveryCodingOfTheSameCoefficientsGivesTheSamePixels) {
  for (const auto& [w, h] : {std::pair{1, 1}, {7, 9}, {64, 48}, {173, 131}}) {
    for (const auto& [sh, sv] : {std::pair{1, 1}, {2, 1}, {2, 2}, {4, 1}, {1, 2}}) {
      const Bytes baseline = encode_jpeg(make_picture(w, h), {.h = sh, .v = sv});
      const Decoded want = decode(baseline);
      EXPECT_EQ(want.width, w);
      EXPECT_EQ(want.height, h);
      EXPECT_EQ(decode(transcode_jpeg(baseline, {.progressive = true})), want);
      EXPECT_EQ(decode(transcode_jpeg(baseline, {.arithmetic = true})), want);
      EXPECT_EQ(decode(transcode_jpeg(baseline, {.progressive = true, .arithmetic = true})), want);
      EXPECT_EQ(decode(transcode_jpeg(baseline, {.restart = 1})), want);
    }
  }
}

// Strict mode reads baseline scans with a decoder of our own, tolerant mode with the library's.
TEST(ImageDecode, OwnAndLibraryEntropyDecodingAgree) {
  const machine::Isa best = machine::isa();
  for (const machine::Isa isa : {machine::Isa::kBaseline, best}) {
    machine::set_isa(isa);
    for (const int quality : {1, 30, 75, 95, 100}) {
      for (const int restart : {0, 1, 3, 8}) {
        for (const bool optimized : {false, true}) {
          for (const int channels : {1, 3, 4}) {
            const Bytes file =
                encode_jpeg(make_picture(83, 61, channels),
                            {.quality = quality, .restart = restart, .optimized = optimized});
            EXPECT_EQ(decode(file), decode(file, {.strict = false}))
                << quality << " " << restart << " " << optimized << " " << channels;
          }
        }
      }
    }
  }
  machine::set_isa(best);
}

// A file without Huffman tables means the standard's; those of the file before must not serve.
TEST(ImageDecode, APictureDoesNotDependOnThoseBefore) {
  const Bytes whole = encode_jpeg(make_picture(40, 40));
  const auto without = [&whole](int marker) {
    Bytes out = whole;
    for (std::size_t at = 2; std::to_integer<int>(out[at + 1]) != 0xDA;) {
      const auto length = 2 + std::to_integer<std::size_t>(out[at + 2]) * 256 +
                          std::to_integer<std::size_t>(out[at + 3]);
      if (std::to_integer<int>(out[at + 1]) == marker) {
        out.erase(out.begin() + std::ptrdiff_t(at), out.begin() + std::ptrdiff_t(at + length));
      } else {
        at += length;
      }
    }
    return out;
  };
  const Bytes no_huffman = without(0xC4);
  const Bytes no_quantisation = without(0xDB);
  ASSERT_LT(no_huffman.size(), whole.size());
  for (const bool strict : {true, false}) {
    const DecodeOptions options{.strict = strict};
    EXPECT_EQ(decode(no_huffman, options), decode(whole));
    EXPECT_THROW(decode(no_quantisation, options), DataError);
    Decoder used;
    const Bytes before = encode_jpeg(make_picture(33, 9), {.quality = 20, .optimized = true});
    used.open(before, "f", {});  // the decoder reads from these bytes until the next open()
    used.decode({0, 0, 33, 9});
    used.open(no_huffman, "f", options);
    const Region region{0, 0, 40, 40};
    EXPECT_EQ(dense(used.decode(region), region), decode(whole));
    used.open(no_quantisation, "f", options);
    EXPECT_THROW(used.decode(region), DataError);
  }
}

// Case 92.
TEST(ImageDecode, ExtremeShapesDecode) {
  const Decoded wide = decode(encode_jpeg(flat_picture(65500, 1, {10, 20, 30})));
  EXPECT_EQ(wide.width, 65500);
  const Decoded tall = decode(encode_jpeg(flat_picture(1, 65500, {10, 20, 30})));
  EXPECT_EQ(tall.height, 65500);
  EXPECT_NEAR(tall.data[3 * 65499 + 1], 20, 2);
}

TEST(ImageDecode, ARegionEqualsThatPartOfTheWholePicture) {
  for (const bool progressive : {false, true}) {
    for (const auto& [sh, sv] : {std::pair{1, 1}, {2, 1}, {2, 2}, {4, 1}, {1, 2}}) {
      for (const int channels : {3, 1}) {
        const Bytes file =
            encode_jpeg(make_picture(151, 117), {.progressive = progressive, .h = sh, .v = sv});
        const DecodeOptions options{.channels = channels};
        Decoder decoder;
        const Header header = decoder.open(file, "f", options);
        const Region whole{0, 0, header.width, header.height};
        const Decoded full = dense(decoder.decode(whole), whole);
        std::uint32_t random = 1;
        const auto below = [&random](i64 n) {
          random = random * 1664525u + 1013904223u;
          return i64(random >> 8) % n;
        };
        for (int i = 0; i < 120; ++i) {
          Region r{below(151), below(117), 0, 0};
          r.width = 1 + below(151 - r.x);
          r.height = 1 + below(117 - r.y);
          decoder.open(file, "f", options);
          const Decoded part = dense(decoder.decode(r), r);
          Decoded want{r.width, r.height, {}};
          for (i64 y = r.y; y < r.y + r.height; ++y) {
            const auto row = full.data.begin() + (y * 151 + r.x) * channels;
            want.data.insert(want.data.end(), row, row + r.width * channels);
          }
          ASSERT_EQ(part, want) << sh << "x" << sv << (progressive ? " progressive" : "")
                                << " region " << r.x << "," << r.y << " " << r.width << "x"
                                << r.height;
        }
      }
    }
  }
}

TEST(ImageDecode, ReducedPicturesCoverTheSameScene) {
  const Picture picture = make_picture(200, 120);
  const Bytes file = encode_jpeg(picture, {.quality = 95});
  for (const int reduce : {2, 4, 8}) {
    Decoder decoder;
    decoder.open(file, "f", {});
    const Pixels p = decoder.decode({40, 32, 96, 64}, reduce);
    EXPECT_EQ(p.scale, reduce);
    EXPECT_LE(p.x, 40);
    EXPECT_GE(p.x + p.width * reduce, 136);
    double sum = 0;
    double want = 0;
    for (i64 y = 32; y < 96; ++y) {
      for (i64 x = 40; x < 136; ++x) {
        const i64 row = (y - p.y) / reduce;
        const i64 column = (x - p.x) / reduce;
        sum += p.data[row * p.stride + column * 3];
        want += picture.data[std::size_t((y * 200 + x) * 3)];
      }
    }
    EXPECT_NEAR(sum / (96 * 64), want / (96 * 64), 2.0);
  }
}

// Case 85.
TEST(ImageDecode, EveryColourModeOfOneFlatColourAgrees) {
  const auto near = [](const Bytes& file, int r, int g, int b, const char* what) {
    const Decoded got = decode(file);
    ASSERT_EQ(got.data.size(), std::size_t(got.width * got.height * 3)) << what;
    for (std::size_t i = 0; i < got.data.size(); i += 3) {
      ASSERT_NEAR(got.data[i], r, 2) << what;
      ASSERT_NEAR(got.data[i + 1], g, 2) << what;
      ASSERT_NEAR(got.data[i + 2], b, 2) << what;
    }
  };
  const auto png = [](std::vector<std::uint8_t> pixel, int color) {
    const Picture p = flat_picture(33, 17, std::move(pixel));
    return encode_png(33, 17, p.data, {.color = color});
  };
  near(png({128}, PNG_COLOR_TYPE_GRAY), 128, 128, 128, "L");
  near(png({128, 9}, PNG_COLOR_TYPE_GRAY_ALPHA), 128, 128, 128, "LA");
  near(png({128, 128, 128}, PNG_COLOR_TYPE_RGB), 128, 128, 128, "RGB");
  near(png({128, 128, 128, 0}, PNG_COLOR_TYPE_RGB_ALPHA), 128, 128, 128, "RGBA");
  const PngOptions palette{.color = PNG_COLOR_TYPE_PALETTE,
                           .palette = {{0, 0, 0}, {128, 128, 128}},
                           .palette_alpha = {255, 3}};
  near(encode_png(33, 17, flat_picture(33, 17, {1}).data, palette), 128, 128, 128, "palette");
  const PngOptions bits{.bits = 1, .color = PNG_COLOR_TYPE_GRAY};
  near(encode_png(16, 2, {0xFF, 0xFF, 0xFF, 0xFF}, bits), 255, 255, 255, "one bit");
  near(encode_jpeg(flat_picture(33, 17, {128}), {.h = 1, .v = 1}), 128, 128, 128, "gray JPEG");
  // A gray JPEG may state 2 x 2 sampling, which means nothing with one component.
  near(encode_jpeg(flat_picture(33, 17, {128}), {.h = 2, .v = 2}), 128, 128, 128, "gray 2x2");
  near(encode_jpeg(flat_picture(33, 17, {200, 100, 50})), 200, 100, 50, "colour JPEG");
  // Adobe's inverted CMYK: 255 is no ink. R = C K / 255.
  const Picture inks = flat_picture(33, 17, {200, 100, 50, 128});
  near(encode_jpeg(inks), 100, 50, 25, "CMYK");
  near(encode_jpeg(inks, {.ycck = true}), 100, 50, 25, "YCCK");
}

TEST(ImageDecode, OneChannelIsLuma) {
  const DecodeOptions gray{.channels = 1};
  EXPECT_NEAR(decode(encode_jpeg(flat_picture(9, 9, {200, 100, 50})), gray).data[0], 124, 2);
  EXPECT_EQ(decode(encode_png(2, 1, {200, 100, 50, 10, 20, 30}), gray).data,
            (std::vector<std::uint8_t>{124, 18}));
  EXPECT_NEAR(decode(encode_jpeg(flat_picture(9, 9, {200, 100, 50, 255})), gray).data[0], 124, 2);
}

// Case 87: 16-bit values are rounded to 8 bits, 0x8000 to 128 and 0x00FF to 1, never cut to 0.
TEST(ImageDecode, SixteenBitPngsAreRounded) {
  const Decoded gray = decode(
      encode_png(2, 1, {0x80, 0x00, 0x00, 0xFF}, {.bits = 16, .color = PNG_COLOR_TYPE_GRAY}));
  EXPECT_EQ(gray.data, (std::vector<std::uint8_t>{128, 128, 128, 1, 1, 1}));
  const Decoded rgb = decode(
      encode_png(2, 1, {0x80, 0x00, 0x00, 0xFF, 0xFF, 0xFF, 0x01, 0x80, 0x01, 0x81, 0x7F, 0x7F},
                 {.bits = 16}));
  EXPECT_EQ(rgb.data, (std::vector<std::uint8_t>{128, 1, 255, 1, 1, 127}));
}

TEST(ImageDecode, InterlacedPngsAndRegionsAgree) {
  const Picture p = make_picture(61, 43);
  const Decoded want{61, 43, p.data};
  EXPECT_EQ(decode(encode_png(61, 43, p.data)), want);
  const Bytes file = encode_png(61, 43, p.data, {.interlaced = true});
  EXPECT_EQ(decode(file), want);
  Decoder decoder;
  decoder.open(file, "f", {});
  const Region r{13, 7, 20, 30};
  const Decoded part = dense(decoder.decode(r), r);
  EXPECT_EQ(part.data[0], p.data[std::size_t((7 * 61 + 13) * 3)]);
  EXPECT_EQ(part.data.back(), p.data[std::size_t((36 * 61 + 32) * 3 + 2)]);
}

// Case 89: blocks A | B of 16 x 8 pixels, tags 1 to 8, both byte orders, JPEG and PNG.
TEST(ImageDecode, ExifOrientationIsApplied) {
  constexpr int kA = 40;
  constexpr int kB = 200;
  Picture row{32, 8, 3, {}};
  for (int i = 0; i < 32 * 8 * 3; ++i) {
    row.data.push_back((i / 3) % 32 < 16 ? kA : kB);
  }
  for (int tag = 0; tag <= 8; ++tag) {
    for (const bool png : {false, true}) {
      const Bytes file =
          png ? encode_png(32, 8, row.data, {.orientation = tag})
              : encode_jpeg(row, {.h = 1, .v = 1, .orientation = tag, .intel = tag % 2 == 0});
      const Decoded got = decode(file);
      const bool turned = tag >= 5;
      ASSERT_EQ(got.width, turned ? 8 : 32) << tag;
      ASSERT_EQ(got.height, turned ? 32 : 8) << tag;
      const int first = got.data.front();
      const int last = got.data.back();
      const bool b_first = tag == 2 || tag == 3 || tag == 7 || tag == 8;
      EXPECT_NEAR(first, b_first ? kB : kA, 2) << tag;
      EXPECT_NEAR(last, b_first ? kA : kB, 2) << tag;
      const Decoded raw = decode(file, {.apply_orientation = false});
      EXPECT_EQ(raw.width, 32);
      EXPECT_NEAR(raw.data.front(), kA, 2);
    }
  }
}

TEST(ImageDecode, RegionsOfTurnedPicturesAreOfTheShownPicture) {
  const Picture p = make_picture(96, 64);
  for (int tag = 1; tag <= 8; ++tag) {
    const Bytes file = encode_jpeg(p, {.orientation = tag});
    const Decoded full = decode(file);
    Decoder decoder;
    decoder.open(file, "f", {});
    const Region r{11, 23, 37, 31};
    const Decoded part = dense(decoder.decode(r), r);
    for (i64 y = 0; y < r.height; ++y) {
      for (i64 i = 0; i < r.width * 3; ++i) {
        ASSERT_EQ(part.data[std::size_t(y * r.width * 3 + i)],
                  full.data[std::size_t(((r.y + y) * full.width + r.x) * 3 + i)])
            << "tag " << tag;
      }
    }
    for (const int reduce : {2, 4}) {
      decoder.open(file, "f", {});
      const Pixels small = decoder.decode(r, reduce);
      EXPECT_LE(small.x, r.x);
      EXPECT_LE(small.y, r.y);
      EXPECT_GE(small.x + small.width * reduce, r.x + r.width);
      EXPECT_GE(small.y + small.height * reduce, r.y + r.height);
    }
  }
}

TEST(ImageDecode, DamagedExifIsIgnored) {
  const Bytes good = exif_block(6, true);
  EXPECT_EQ(exif_orientation(good), 6);
  for (std::size_t i = 0; i < good.size(); ++i) {
    // The entry ends at byte 22; the offset of the next directory after it is not needed.
    EXPECT_EQ(exif_orientation(std::span(good).first(i)), i < 22 ? 1 : 6) << i;
    Bytes bad = good;
    bad[i] = std::byte{0xFF};
    const int orientation = exif_orientation(bad);
    EXPECT_GE(orientation, 1);
    EXPECT_LE(orientation, 8);
  }
  EXPECT_EQ(exif_orientation(exif_block(9, true)), 1);
  EXPECT_EQ(exif_orientation(exif_block(0, false)), 1);
}

// Case 83.
TEST(ImageDecode, CutJpegsAreRefusedWhateverTheRegion) {
  const Picture picture = make_picture(256, 256);
  for (const bool progressive : {false, true}) {
    const Bytes file = encode_jpeg(picture, {.progressive = progressive});
    for (const double share : {0.1, 0.5, 0.99, 0.999}) {
      const Bytes part = cut(file, share);
      EXPECT_NE(message_of<DataError>([&] { decode(part); }).find("test file"), std::string::npos);
      // The region's own rows are whole; the file is not.
      EXPECT_THROW(
          {
            Decoder decoder;
            decoder.open(part, "f", {});
            decoder.decode({0, 0, 16, 8});
          },
          DataError);
    }
    EXPECT_NO_THROW(decode(cut(file, 0.9), {.strict = false}));
  }
}

// Case 83: a thumbnail's end marker inside EXIF must not pass for the picture's.
TEST(ImageDecode, AnEndMarkerInsideMetadataDoesNotHideACut) {
  Bytes file = encode_jpeg(make_picture(64, 64));
  const Bytes marker = {std::byte{0xFF}, std::byte{0xE1}, std::byte{0x00}, std::byte{0x06},
                        std::byte{0xFF}, std::byte{0xD8}, std::byte{0xFF}, std::byte{0xD9}};
  file.insert(file.begin() + 2, marker.begin(), marker.end());
  EXPECT_NO_THROW(decode(file));
  file.resize(file.size() - 2);
  EXPECT_THROW(decode(file), DataError);
}

// Case 83.
TEST(ImageDecode, DamagedEntropyDataNeverCrashesAndWarningsAreErrors) {
  const Bytes file = encode_jpeg(make_picture(128, 96));
  int refused = 0;
  for (std::size_t i = 2; i < file.size(); i += 7) {
    Bytes bad = file;
    bad[i] ^= std::byte{0xFF};
    try {
      decode(bad);
    } catch (const DataError&) {
      ++refused;
    }
    try {
      decode(bad, {.strict = false});
    } catch (const DataError&) {
    }
  }
  EXPECT_GT(refused, 0);
}

// Case 83: fill bytes before a marker are legal.
TEST(ImageDecode, FillBytesBeforeMarkersAreLegal) {
  const Bytes file = encode_jpeg(make_picture(40, 40));
  Bytes filled = file;
  filled.insert(filled.begin() + 2, 3, std::byte{0xFF});
  EXPECT_EQ(decode(filled), decode(file));
  Bytes at_end = file;
  at_end.insert(at_end.end() - 2, 2, std::byte{0xFF});
  EXPECT_EQ(decode(at_end), decode(file));
}

TEST(ImageDecode, CutAndDamagedPngsAreRefused) {
  const Picture p = make_picture(64, 64);
  const Bytes file = encode_png(64, 64, p.data);
  for (const double share : {0.1, 0.5, 0.99}) {
    EXPECT_NE(message_of<DataError>([&] { decode(cut(file, share)); }).find("test file"),
              std::string::npos);
  }
  for (std::size_t i = 8; i < file.size(); i += 5) {
    Bytes bad = file;
    bad[i] ^= std::byte{0x55};
    try {
      decode(bad);
    } catch (const DataError&) {
    }
  }
  Bytes flipped = file;
  flipped[file.size() / 2] ^= std::byte{1};
  EXPECT_THROW(decode(flipped), DataError);
}

// Case 91: sizes are refused from the header; nothing of that order is allocated.
TEST(ImageDecode, BombsAreRefusedBeforeAllocation) {
  const i64 before = machine::resident_memory();
  const auto open = [](std::uint32_t w, std::uint32_t h) {
    return message_of<DataError>([&] { decode(hollow_png(w, h)); });
  };
  EXPECT_NE(open(20000, 20000).find("20000 x 20000"), std::string::npos);
  EXPECT_NE(open(65536, 65536).find("65536 x 65536"), std::string::npos);
  EXPECT_NE(open(0x7FFFFFFF, 1).find("2147483647 x 1"), std::string::npos);
  EXPECT_NE(open(0, 0), "");
  EXPECT_NE(open(0xFFFFFFFF, 0xFFFFFFFF), "");
  // A JPEG whose frame header was patched to 65000 x 65000.
  Bytes jpeg = encode_jpeg(make_picture(16, 16), {.progressive = true});
  for (std::size_t i = 0; i + 9 < jpeg.size(); ++i) {
    if (jpeg[i] == std::byte{0xFF} && jpeg[i + 1] == std::byte{0xC2}) {
      for (const std::size_t at : {i + 5, i + 7}) {
        jpeg[at] = std::byte{0xFD};
        jpeg[at + 1] = std::byte{0xE8};
      }
      break;
    }
  }
  EXPECT_NE(message_of<DataError>([&] { decode(jpeg); }).find("65000 x 65000"), std::string::npos);
  EXPECT_LT(machine::resident_memory() - before, i64{50} << 20);
}

// Case 91: a progressive picture inside the pixel limit still needs its coefficients in memory.
TEST(ImageDecode, TheByteLimitCountsCoefficients) {
  const Bytes file = encode_jpeg(make_picture(256, 256), {.progressive = true});
  DecodeOptions options;
  options.limits.max_decode_bytes = 300'000;  // pixels 196,608; coefficients as many again
  EXPECT_NE(message_of<DataError>([&] { decode(file, options); }).find("more than the limit"),
            std::string::npos);
  options.limits.max_decode_bytes = 1'000'000;
  EXPECT_NO_THROW(decode(file, options));
}

// Case 92: scans are bounded.
TEST(ImageDecode, AFileThatRepeatsItsScansIsRefused) {
  const Bytes file = encode_jpeg(make_picture(16, 16), {.progressive = true});
  std::size_t last = 0;
  for (std::size_t i = 0; i + 1 < file.size(); ++i) {
    if (file[i] == std::byte{0xFF} && file[i + 1] == std::byte{0xDA}) {
      last = i;
    }
  }
  Bytes many(file.begin(), file.end() - 2);
  for (int i = 0; i < 400; ++i) {
    many.insert(many.end(), file.begin() + std::ptrdiff_t(last), file.end() - 2);
  }
  many.insert(many.end(), file.end() - 2, file.end());
  const std::string message = message_of<DataError>([&] { decode(many, {.strict = false}); });
  EXPECT_NE(message.find("more than 256 scans"), std::string::npos) << message;
}

TEST(ImageDecode, ADecoderIsUsableAfterAnError) {
  Decoder decoder;
  const Bytes good = encode_jpeg(make_picture(32, 32));
  const Bytes png = encode_png(4, 4, make_picture(4, 4).data);
  for (int i = 0; i < 3; ++i) {
    EXPECT_THROW(decoder.open(cut(good, 0.1), "f", {}), DataError);
    decoder.open(good, "f", {});
    EXPECT_EQ(decoder.decode({0, 0, 32, 32}).width, 32);
    EXPECT_THROW(decoder.decode({0, 0, 32, 32}), Error) << "one decode per open";
    decoder.open(png, "f", {});
    EXPECT_EQ(decoder.decode({0, 0, 4, 4}).width, 4);
    decoder.open(png, "f", {});  // opened, never decoded
  }
  decoder.open(good, "f", {});
  EXPECT_THROW(decoder.decode({0, 0, 33, 32}), Error);
}

TEST(ImageDecode, FastModeStaysClose) {
  const Bytes file = encode_jpeg(make_picture(128, 128));
  EXPECT_LT(difference(decode(file), decode(file, {.fast = true})), 60);
}

}  // namespace
}  // namespace penstock::data::image
