#include <gtest/gtest.h>

#include "framework/core/format.h"

namespace penstock {
namespace {

TEST(Format, ReplacesBracesInOrderAndHonoursSpecs) {
  EXPECT_EQ(format("{} of {:.2f} {{}} {}", 3, 1.5, "x"), "3 of 1.50 {} x");
  EXPECT_EQ(format("nothing"), "nothing");
  EXPECT_EQ(format("{} {}", 1), "1 {}");
}

}  // namespace
}  // namespace penstock
