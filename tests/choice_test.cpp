// Algorithm choices on disk: kept for the next process, and never trusted.
#include <gtest/gtest.h>

#include "framework/kernels/choice.h"
#include "tests/program.h"

namespace penstock::kernels {
namespace {

using program::read_file;
using program::TemporaryFolder;

TEST(ChoiceFile, KeepsChoicesForTheNextProcess) {
  const TemporaryFolder folder;
  const std::string file = folder / "choices.txt";
  forget_choices();
  use_choice_file(file);
  const std::string algorithm("\x00\x01\xff \n", 5);
  keep_choice("gemm 1 x 2", {.algorithm = algorithm, .workspace = 4096, .milliseconds = 0.25});
  keep_choice("conv", {.algorithm = "eng3{k=1}", .workspace = 0, .milliseconds = 1e-3});
  forget_choices();
  EXPECT_FALSE(find_choice("conv").has_value());
  use_choice_file(file);
  ASSERT_TRUE(find_choice("gemm 1 x 2").has_value());
  EXPECT_EQ(find_choice("gemm 1 x 2")->algorithm, algorithm);
  EXPECT_EQ(find_choice("gemm 1 x 2")->workspace, 4096);
  EXPECT_EQ(find_choice("conv")->algorithm, "eng3{k=1}");
  use_choice_file("");
}

TEST(ChoiceFile, DamagedLinesAndLargerWorkspacesAreLeftOut) {
  const TemporaryFolder folder;
  const std::string file = folder / "choices.txt";
  forget_choices();
  use_choice_file(file);
  keep_choice("a", {.algorithm = "x", .workspace = 1, .milliseconds = 1});
  keep_choice("b", {.algorithm = "y", .workspace = i64{1} << 40, .milliseconds = 1});
  keep_choice("c", {.algorithm = "z", .workspace = 1, .milliseconds = 1});
  std::string text = read_file(file);
  text[3] = text[3] == '7' ? '8' : '7';                  // damages the first line
  text += "hello\n\n12 34\n" + std::string(100'000, 'f');  // and garbage behind
  std::ofstream(file, std::ios::binary) << text;
  forget_choices();
  use_choice_file(file);
  EXPECT_FALSE(find_choice("a").has_value());
  EXPECT_FALSE(find_choice("b").has_value());
  EXPECT_TRUE(find_choice("c").has_value());
  use_choice_file(folder / "nowhere/choices.txt");
  keep_choice("d", {.algorithm = "w", .workspace = 0, .milliseconds = 1});  // a warning, no error
  EXPECT_TRUE(find_choice("d").has_value());
  use_choice_file("");
  forget_choices();
}

}  // namespace
}  // namespace penstock::kernels
