// Values of the configuration: what each key takes, how numbers and quantities may be written, that
// everything survives writing and reading, and what a resumed run may change.
#include <gtest/gtest.h>

#include <algorithm>
#include <clocale>
#include <fstream>
#include <locale>
#include <sstream>

#include "framework/io/config.h"
#include "framework/io/schema.h"
#include "framework/io/schema_values.h"

namespace penstock::io {
namespace {

const std::string kGood = "model:\n  name: mlp\ndata:\n  name: mnist\n";

Config read(const std::string& text, const std::vector<std::string>& set = {}) {
  return parse_config(text, "c.yaml", set);
}
Config set(const std::vector<std::string>& overrides) {
  return read(kGood, overrides);
}

std::string error_of(const std::vector<std::string>& overrides) {
  try {
    (void)set(overrides);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

// A file with only the required keys and this one.
std::string file_with(const std::string& key, const std::string& value) {
  const std::string section = key.substr(0, key.find('.'));
  const std::string line = "  " + key.substr(section.size() + 1) + ": " + value + "\n";
  if (key == "model.name") {
    return "model:\n" + line + "data:\n  name: mnist\n";
  }
  if (key == "data.name") {
    return "model:\n  name: mlp\ndata:\n" + line;
  }
  if (section == "model") {
    return "model:\n  name: mlp\n" + line + "data:\n  name: mnist\n";
  }
  return section == "data" ? kGood + line : kGood + section + ":\n" + line;
}

// A value that the key takes and that is not its default.
std::string other_value(const schema::Key& key) {
  const std::string usual = key.text(read(kGood));
  std::vector<std::string> candidates = key.choices;
  for (const char* c : {"77", "2", "0.25", "0.75", "[0.5, 0.25]", "[0.25, 0.75]", "[7, 9]", "3 MiB",
                        "90 s", "7 epochs", "7 steps", "some text"}) {
    candidates.emplace_back(c);
  }
  for (const std::string& candidate : candidates) {
    try {
      if (key.text(read(file_with(key.path, candidate))) != usual) {
        return candidate;
      }
    } catch (const ConfigError&) {
    }
  }
  return "";
}

TEST(ConfigValues, EveryKeyIsReadWrittenAndReadBack) {
  for (const schema::Key& key : schema::table()) {
    if (key.path == "model.attention_dropout" || key.path == "data.mean" ||
        key.path == "data.deviation" || key.choices.size() == 1) {
      continue;  // have one value only; not one without the other
    }
    const std::string value = other_value(key);
    ASSERT_NE(value, "") << key.path;
    const Config from_file = read(file_with(key.path, value));
    const Config from_set =
        key.required ? read(kGood, {key.path + "=" + value}) : set({key.path + "=" + value});
    EXPECT_TRUE(differences(from_file, from_set).empty()) << key.path;
    const std::vector<KeyChange> changed = differences(read(kGood), from_file);
    ASSERT_EQ(changed.size(), 1u) << key.path;
    EXPECT_EQ(changed[0].key, key.path);
    for (const bool origins : {false, true}) {
      const std::string text = to_yaml(from_file, origins);
      const Config again = read(text);
      EXPECT_TRUE(differences(from_file, again).empty()) << text;
      EXPECT_EQ(to_yaml(again), to_yaml(from_file));
    }
    EXPECT_TRUE(origin_of(from_file, key.path).starts_with("c.yaml:")) << key.path;
    EXPECT_EQ(origin_of(from_set, key.path), "--set");
    // An empty override takes the default back, of what only a file must say nothing.
    if (!key.required) {
      const Config back = read(file_with(key.path, value), {key.path + "="});
      EXPECT_TRUE(differences(back, read(kGood)).empty()) << key.path;
      EXPECT_EQ(origin_of(back, key.path), "default");
    }
  }
}

TEST(ConfigValues, EveryKeyHasHelpATypeAndADefaultThatLoads) {
  const Config defaults = default_config();
  for (const schema::Key& key : schema::table()) {
    EXPECT_GT(key.help.size(), 3u) << key.path;
    EXPECT_FALSE(key.type.empty()) << key.path;
    const std::string value = key.text(defaults);
    if (!key.required && !value.empty()) {
      EXPECT_TRUE(differences(read(kGood), read(file_with(key.path, value))).empty()) << key.path;
    }
  }
}

TEST(ConfigValues, TheReferenceIsAConfigurationOfDefaults) {
  std::string reference = config_reference();
  for (const auto& [from, to] : {std::pair{"model:\n", "mlp"}, std::pair{"data:\n", "mnist"}}) {
    const std::size_t name =
        reference.find("  name:  # required", reference.find(std::string("\n") + from));
    ASSERT_NE(name, std::string::npos);
    reference.replace(name, 19, std::string("  name: ") + to);
  }
  EXPECT_TRUE(differences(read(kGood), read(reference)).empty());
}

TEST(ConfigValues, ThePageNamesEveryKeyWithItsDefault) {
  std::ifstream in(PENSTOCK_DOCS "/config.md");
  std::stringstream page;
  page << in.rdbuf();
  std::string missing;
  for (const schema::Key& key : schema::table()) {
    const std::string fallback = key.required           ? "required"
                                 : key.fallback.empty() ? "none"
                                                        : "`" + key.fallback + "`";
    const std::string row = "| `" + key.path + "` | " + fallback + " |";
    missing += page.str().find(row) == std::string::npos ? row + "\n" : "";
  }
  EXPECT_EQ(missing, "") << "docs/config.md lacks these";
}

// ---- how values may be written
// ---------------------------------------------------------------------

TEST(ConfigValues, NumbersMeanWhatTheyLookLike) {
  for (const char* t :
       {"1e-4", "1.0e-4", "1E-4", "+1e-4", ".0001", "0.0001", "0.1e-3", "1e-04  # a comment"}) {
    EXPECT_EQ(read(file_with("optimizer.learning_rate", t)).optimizer.learning_rate, 1e-4) << t;
  }
  for (const char* t : {"1e3", "1000", "1000.0", "1.0e3", "+1000", " 1000 "}) {
    EXPECT_EQ(read(file_with("train.batch", t)).train.batch, 1000) << t;
  }
  EXPECT_EQ(set({"run.seed=9000000000000000"}).run.seed, 9'000'000'000'000'000);
  EXPECT_EQ(set({"run.seed=0"}).run.seed, 0);
  EXPECT_EQ(set({"train.target=-1.5"}).train.target, -1.5);
}

struct CommaDecimals : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(ConfigValues, TheLocaleChangesNothing) {
  const std::string before = to_yaml(set({"train.batch=12345", "optimizer.learning_rate=0.0125"}));
  const std::locale usual =
      std::locale::global(std::locale(std::locale::classic(), new CommaDecimals));
  const std::string c_usual = std::setlocale(LC_ALL, nullptr);
  (void)std::setlocale(LC_ALL, "de_DE.UTF-8");  // where it is installed
  const std::string text = to_yaml(set({"train.batch=12345", "optimizer.learning_rate=0.0125"}));
  const std::string again = to_yaml(read(text));
  const std::string wrong = error_of({"optimizer.learning_rate=0,0125"});
  std::locale::global(usual);
  std::setlocale(LC_ALL, c_usual.c_str());
  EXPECT_EQ(text, before);
  EXPECT_EQ(again, before);
  EXPECT_NE(wrong, "");
}

TEST(ConfigValues, BytesAndTimesHaveUnits) {
  const auto bytes = [](const char* t) { return read(file_with("memory.limit", t)).memory.limit; };
  EXPECT_EQ(bytes("512 MiB"), i64{512} << 20);
  EXPECT_EQ(bytes("512MiB"), i64{512} << 20);
  EXPECT_EQ(bytes("1.5 GiB"), i64{3} << 29);
  EXPECT_EQ(bytes("2 GB"), 2'000'000'000);
  EXPECT_EQ(bytes("3 kB"), 3000);
  EXPECT_EQ(bytes("1 TiB"), i64{1} << 40);
  EXPECT_EQ(bytes("\"7 B\""), 7);
  EXPECT_EQ(bytes("4096"), 4096);
  EXPECT_EQ(bytes("1e6"), 1'000'000);
  const auto time = [](const char* t) {
    return read(file_with("train.max_time", t)).train.max_time;
  };
  EXPECT_EQ(time("90"), 90);
  EXPECT_EQ(time("90 s"), 90);
  EXPECT_EQ(time("1.5 min"), 90);
  EXPECT_EQ(time("30 minutes"), 1800);
  EXPECT_EQ(time("2h"), 7200);
  EXPECT_EQ(time("1 day"), 86400);
  EXPECT_EQ(time("250 ms"), 0.25);
  EXPECT_DOUBLE_EQ(time("5 us"), 5e-6);
}

TEST(ConfigValues, PeriodsHaveUnitsAndNoneIsNever) {
  using Unit = Period::Unit;
  const auto period = [](const char* t) {
    return read(file_with("checkpoint.every", t)).checkpoint.every;
  };
  EXPECT_EQ(period("500 steps"), (Period{500, Unit::kSteps}));
  EXPECT_EQ(period("1 step"), (Period{1, Unit::kSteps}));
  EXPECT_EQ(period("0.5 epochs"), (Period{0.5, Unit::kEpochs}));
  EXPECT_EQ(period("1e6 samples"), (Period{1e6, Unit::kSamples}));
  EXPECT_EQ(period("10 min"), (Period{600, Unit::kSeconds}));
  EXPECT_EQ(period("3 %"), (Period{0.03, Unit::kShare}));
  EXPECT_EQ(period("3%"), (Period{0.03, Unit::kShare}));
  EXPECT_EQ(period("auto"), (Period{0, Unit::kAuto}));
  for (const char* none : {"never", "0", "0 steps", "0 s", "0 %"}) {
    EXPECT_EQ(period(none), Period{}) << none;
  }
}

TEST(ConfigValues, SharesReadBackToTheSameBits) {
  for (int i = 1; i <= 10'000; ++i) {
    const Period p{i / 100.0 / 100, Period::Unit::kShare};
    const std::string text = to_string(p);
    EXPECT_EQ(schema::parse_period(text, schema::Units::kRun), p) << text;
    EXPECT_LT(text.size(), 9u) << text;
  }
}

TEST(ConfigValues, SpellingsOfOthersAreUnderstood) {
  EXPECT_EQ(set({"train.precision=f32"}).train.precision, "fp32");
  EXPECT_EQ(set({"train.precision=float16"}).train.precision, "fp16");
  EXPECT_EQ(set({"train.precision=bfloat16"}).train.precision, "bf16");
  EXPECT_EQ(set({"train.capture=true"}).train.capture, "on");
  EXPECT_EQ(set({"train.capture=false"}).train.capture, "off");
  EXPECT_EQ(set({"model.hidden=7"}).model.hidden, std::vector<i64>{7});
  EXPECT_EQ(set({"data.train=a b.txt"}).data.train, std::vector<std::string>{"a b.txt"});
  for (const auto& [from, to] : schema::aliases()) {
    const std::string value = other_value(*schema::find(to));
    EXPECT_EQ(value_of(set({from + "=" + value}), to), value_of(set({to + "=" + value}), to))
        << from;
  }
}

TEST(ConfigValues, FilesOfOtherSystemsReadTheSame) {
  const std::string text = kGood + "run:\n  name: 'it''s'  # \xC3\xBC\n";
  std::string windows;
  for (const char c : text) {
    windows += c == '\n' ? "\r\n" : std::string(1, c);
  }
  for (const std::string& t : {text, windows, "\xEF\xBB\xBF" + text, "---\n" + text, text + "...\n",
                               text.substr(0, text.size() - 1)}) {
    const Config c = read(t);
    EXPECT_EQ(c.run.name, "it's") << t;
    EXPECT_TRUE(origin_of(c, "run.name").ends_with(":9")) << origin_of(c, "run.name");
  }
}

TEST(ConfigValues, AnyTextSurvivesWritingAndReading) {
  std::vector<std::string> texts = {"null",
                                    "Null",
                                    "NULL",
                                    "~",
                                    "true",
                                    "010",
                                    "- a",
                                    "a: b",
                                    "#x",
                                    "a #b",
                                    " a",
                                    "a ",
                                    "...",
                                    "---",
                                    "%x",
                                    "*a",
                                    "&a",
                                    "!a",
                                    "'",
                                    "\"",
                                    "\\",
                                    "a\\nb",
                                    "a\nb",
                                    "a\tb",
                                    "a\rb",
                                    "\x01",
                                    "\x7f",
                                    "[a",
                                    "{a",
                                    "a,b",
                                    "?",
                                    ":",
                                    "-",
                                    "@",
                                    "`",
                                    "|",
                                    "\xC3\xBC",
                                    "a\xE2\x80\xAE"
                                    "b",
                                    "\xE2\x80\xA8",
                                    "C:\\data\\new",
                                    "$HOME/x",
                                    "<<",
                                    "a]",
                                    "}",
                                    "yes",
                                    ".5",
                                    "1e3",
                                    "\xF0\x9F\x98\x80"};
  for (int c = 1; c < 128; ++c) {
    texts.push_back(std::string(1, char(c)));
    texts.push_back("a" + std::string(1, char(c)) + "b");
    texts.push_back(std::string(1, char(c)) + " ");
  }
  for (const std::string& t : texts) {
    Config c = read(kGood);
    c.run.name = t;
    c.data.train = {t, "x", t};
    const std::string text = to_yaml(c, true);
    const Config again = read(text);
    EXPECT_EQ(again.run.name, t) << text;
    EXPECT_EQ(again.data.train, c.data.train) << text;
  }
  // What is no text at all leaves the file readable.
  Config c = read(kGood);
  c.run.name = "a\xFF\xC3z";
  EXPECT_EQ(read(to_yaml(c)).run.name, "a\xEF\xBF\xBD\xEF\xBF\xBDz");
}

TEST(ConfigValues, OverridesAreTextAsItStandsOrAValueOfAFile) {
  EXPECT_EQ(set({"run.name=it's #1: a, b"}).run.name, "it's #1: a, b");
  EXPECT_EQ(set({"run.name=*.bin"}).run.name, "*.bin");
  EXPECT_EQ(set({"run.name=a=b"}).run.name, "a=b");
  EXPECT_EQ(set({"run.name=\"a\\\"b\""}).run.name, "a\"b");
  EXPECT_EQ(set({"run.name='[x]'"}).run.name, "[x]");
  EXPECT_EQ(set({"model.hidden=[3, 4]"}).model.hidden, (std::vector<i64>{3, 4}));
  EXPECT_EQ(set({"data.train=[a.bin, 'b c.bin']"}).data.train,
            (std::vector<std::string>{"a.bin", "b c.bin"}));
  EXPECT_EQ(set({"train.batch=3", "train.batch=5"}).train.batch, 5);
}

// ---- hints and completion
// --------------------------------------------------------------------------

TEST(ConfigValues, OneSlipInAKeyFindsIt) {
  for (const schema::Key& key : schema::table()) {
    const std::string section = key.path.substr(0, key.path.find('.') + 1);
    const std::string word = key.path.substr(section.size());
    if (word.size() < 5) {
      continue;
    }
    for (std::size_t i = 0; i < word.size(); ++i) {
      std::string missing = word;
      missing.erase(i, 1);
      std::string doubled = word;
      doubled.insert(i, 1, word[i]);
      std::string wrong = word;
      wrong[i] = 'q';
      std::string swapped = word;
      if (i + 1 < word.size()) {
        std::swap(swapped[i], swapped[i + 1]);
      }
      for (const std::string& slip : {missing, doubled, wrong, swapped}) {
        if (schema::find(section + slip) == nullptr) {
          EXPECT_EQ(schema::nearest(section + slip), key.path) << slip;
        }
      }
    }
  }
  EXPECT_EQ(schema::nearest("train.zzzzzzzz"), "");
  EXPECT_EQ(schema::nearest(""), "");
  EXPECT_EQ(schema::nearest("."), "");
  EXPECT_EQ(schema::nearest("..."), "");
}

TEST(ConfigValues, AKeyInTheWrongSectionIsSentHome) {
  for (const schema::Key& key : schema::table()) {
    const std::string word = key.path.substr(key.path.find('.') + 1);
    const auto same = std::count_if(
        schema::table().begin(), schema::table().end(),
        [&](const schema::Key& k) { return k.path.substr(k.path.find('.') + 1) == word; });
    for (const std::string& section : schema::sections()) {
      if (same == 1 && schema::find(section + "." + word) == nullptr) {
        EXPECT_EQ(schema::nearest(section + "." + word), key.path);
      }
    }
  }
}

TEST(ConfigValues, CompletionOffersKeysAndTheirValues) {
  EXPECT_EQ(completions("train.pre"), std::vector<std::string>{"train.precision="});
  EXPECT_EQ(completions("train.precision=").size(), 4u);
  EXPECT_EQ(completions("loader.workers=a"), std::vector<std::string>{"loader.workers=auto"});
  EXPECT_EQ(completions("").size(), config_keys().size());
  EXPECT_TRUE(completions("nothing").empty());
  EXPECT_TRUE(completions("nothing=").empty());
}

// ---- resume
// ------------------------------------------------------------------------------------------

TEST(ConfigValues, EachKeyIsFreeGrowsOrIsFixedOnResume) {
  int frozen = 0;
  for (const schema::Key& key : schema::table()) {
    const std::string value = other_value(key);
    if (value.empty()) {
      continue;
    }
    std::vector<std::string> overrides = {key.path + "=" + value};
    if (key.path == "data.mean" || key.path == "data.deviation") {
      overrides = {"data.mean=[0.5]", "data.deviation=[0.5]"};
    }
    const std::vector<KeyChange> conflicts = resume_conflicts(read(kGood), set(overrides));
    if (key.resume == schema::Resume::kFrozen) {
      ++frozen;
      ASSERT_FALSE(conflicts.empty()) << key.path;
      try {
        check_resume(read(kGood), set(overrides));
        ADD_FAILURE() << key.path;
      } catch (const ConfigError& e) {
        const std::string message = e.what();
        EXPECT_NE(message.find(key.path + ": "), std::string::npos) << message;
        EXPECT_NE(message.find("--set"), std::string::npos) << message;
      }
    } else {
      EXPECT_TRUE(conflicts.empty()) << key.path;  // 77 epochs are more than 10
    }
  }
  EXPECT_GT(frozen, 30);
  EXPECT_EQ(resume_conflicts(set({"train.epochs=5"}), set({"train.epochs=4"})).size(), 1u);
  EXPECT_TRUE(resume_conflicts(set({"train.epochs=5"}), set({"train.epochs=50"})).empty());
  EXPECT_EQ(
      resume_conflicts(set({"run.seed=5"}), set({"train.epochs=4", "train.precision=bf16"})).size(),
      3u);
  // What a run computes may not change under it; where it runs and how it is fed may.
  for (const char* key :
       {"run.seed", "model.name", "model.width", "data.name", "data.flip", "train.precision",
        "train.deterministic", "optimizer.name", "optimizer.weight_decay", "schedule.name"}) {
    EXPECT_EQ(schema::find(key)->resume, schema::Resume::kFrozen) << key;
  }
  for (const char* key :
       {"run.out", "data.dir", "loader.workers", "loader.depth", "train.device", "train.batch",
        "train.max_steps", "train.max_time", "log.interval", "checkpoint.every"}) {
    EXPECT_EQ(schema::find(key)->resume, schema::Resume::kFree) << key;
  }
}

}  // namespace
}  // namespace penstock::io
