// JSON: what is written is always one valid line, what is read is within limits.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "framework/core/check.h"
#include "framework/io/json.h"

namespace penstock::io {
namespace {

std::string error_of(const std::string& text) {
  try {
    (void)Json::parse(text, "t.json");
  } catch (const DataError& e) {
    return e.what();
  }
  return "";
}

TEST(ConfigJson, NumbersThatAreNoneBecomeNull) {
  Json j = Json::array();
  for (const double v : {double(NAN), -double(NAN), double(INFINITY), -double(INFINITY)}) {
    j.push(v);
  }
  j.push(std::optional<double>());
  EXPECT_EQ(j.dump(), "[null,null,null,null,null]");
}

TEST(ConfigJson, NumbersReadBackToTheSameBits) {
  for (const double v : {0.1, 1.0 / 3, 1e-308, 5e-324, 1.7976931348623157e308, -2.5, 123456789.125,
                         1e15, 1e16, 0.0, -0.0}) {
    const std::optional<double> back = Json::parse(Json(v).dump(), "t").number();
    ASSERT_TRUE(back.has_value());
    EXPECT_EQ(*back, v);
    EXPECT_EQ(std::signbit(*back), std::signbit(v));
  }
  for (const i64 v : {i64{0}, std::numeric_limits<i64>::max(), std::numeric_limits<i64>::min(),
                      (i64{1} << 53) + 1}) {
    EXPECT_EQ(Json(v).dump(), std::to_string(v));
    EXPECT_EQ(Json::parse(Json(v).dump(), "t").dump(), std::to_string(v));
  }
}

TEST(ConfigJson, AnyBytesAreAStringOnOneLine) {
  std::string all;
  for (int c = 0; c < 256; ++c) {
    all += char(c);
  }
  Json j = Json::object();
  j.set(all, all).set("</script><!--", "</script><!--");
  const std::string line = j.dump();
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(line.find('<'), std::string::npos);
  EXPECT_EQ(Json::parse(line, "t").dump(), line);
  EXPECT_EQ(Json::parse(line, "t").find("</script><!--")->text(), "</script><!--");
}

TEST(ConfigJson, InvalidUtf8IsReplacedByteByByte) {
  const std::string r = "\xEF\xBF\xBD";
  const auto round = [](const std::string& s) { return *Json::parse(Json(s).dump(), "t").text(); };
  EXPECT_EQ(round("\xC3\xBC \xE2\x82\xAC \xF0\x9F\x98\x80"),
            "\xC3\xBC \xE2\x82\xAC \xF0\x9F\x98\x80");
  EXPECT_EQ(round("\x80"), r);
  EXPECT_EQ(round("\xC0\xAF"), r + r);          // "/" in a long form
  EXPECT_EQ(round("\xE0\x80\xAF"), r + r + r);  // longer
  EXPECT_EQ(round("\xED\xA0\x80"), r + r + r);  // half of a pair
  EXPECT_EQ(round("\xF4\x90\x80\x80"), r + r + r + r);
  EXPECT_EQ(round("cut \xE2\x82"), "cut " + r + r);
  EXPECT_EQ(round("\xC3z"), r + "z");
}

TEST(ConfigJson, OrderAndPathsAreKept) {
  Json j = Json::object();
  j.set("b", 1)
      .set("a", std::move(Json::object().set("c", 2)))
      .set("list", std::move(Json::array().push(true)));
  EXPECT_EQ(j.dump(), R"({"b":1,"a":{"c":2},"list":[true]})");
  EXPECT_EQ(j.dump(true),
            "{\n  \"b\": 1,\n  \"a\": {\n    \"c\": 2\n  },\n  \"list\": [\n    true\n  ]\n}");
  EXPECT_EQ(j.at("a.c")->number(), 2);
  EXPECT_EQ(j.at("a.d"), nullptr);
  EXPECT_EQ(j.at("b.c"), nullptr);
  EXPECT_EQ(j.find("b")->text(), std::nullopt);
  EXPECT_EQ(j.find("b")->boolean(), std::nullopt);
  EXPECT_EQ(j.find("list")->items()->size(), 1u);
  EXPECT_EQ(j.find("b")->items(), nullptr);
}

TEST(ConfigJson, WhatIsNoJsonIsRefusedNamingTheFile) {
  for (const char* text : {"",
                           " ",
                           "{",
                           "[",
                           "[1,]",
                           "{\"a\":}",
                           "{\"a\" 1}",
                           "{a:1}",
                           "'a'",
                           "01",
                           "+1",
                           ".5",
                           "1.",
                           "0x10",
                           "NaN",
                           "Infinity",
                           "nul",
                           "tru",
                           "\"",
                           "\"\\x41\"",
                           "\"\\ud800\"",
                           "\"\x01\"",
                           "\"\xff\"",
                           "\"\xC0\xAF\"",
                           "1e999",
                           "1 2",
                           "{} {}",
                           "[1]x",
                           "// c\n1",
                           "\xEF\xBB\xBF"
                           "1x"}) {
    const std::string e = error_of(text);
    EXPECT_TRUE(e.starts_with("t.json: ")) << text << " -> " << e;
    EXPECT_LT(e.size(), 200u);
  }
}

TEST(ConfigJson, LimitsHoldBeforeMemoryIsSpent) {
  EXPECT_EQ(error_of(std::string(64, '[') + std::string(64, ']')), "");
  EXPECT_NE(error_of(std::string(65, '[') + std::string(65, ']')).find("levels"),
            std::string::npos);
  EXPECT_NE(error_of(std::string(1'000'000, '[')).find("levels"), std::string::npos);
  std::string many = "[0";
  for (int i = 0; i < 1'000'000; ++i) {
    many += ",0";
  }
  EXPECT_NE(error_of(many + "]").find("more than 1000000 values"), std::string::npos);
  EXPECT_NE(error_of("\"" + std::string(64u << 20, 'a') + "\"").find("at most"), std::string::npos);
}

TEST(ConfigJson, KeysAreThereOnceAndManyAreNoTrouble) {
  EXPECT_NE(error_of("{\"a\":1,\"a\":2}").find("\"a\" is there twice"), std::string::npos);
  EXPECT_NE(error_of("{\"a\":1,\"\\u0061\":2}").find("twice"),
            std::string::npos);  // the same by an escape
  EXPECT_NE(error_of("{\"x\":{\"" + std::string(100'000, 'k') + "\":1,\"" +
                     std::string(100'000, 'k') + "\":1}}")
                .find("twice"),
            std::string::npos);
  EXPECT_EQ(error_of("{\"a\":{\"a\":1},\"b\":{\"a\":1}}"), "");
  // A search through all keys for each would take hours.
  std::string text = "{\"k\":0";
  for (int i = 0; i < 400'000; ++i) {
    text += ",\"k" + std::to_string(i) + "\":0";
  }
  EXPECT_EQ(Json::parse(text + "}", "t").members()->size(), 400'001u);
}

}  // namespace
}  // namespace penstock::io
