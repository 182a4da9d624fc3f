#include "vlmtrain/base/options.h"

#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain {
namespace {

using testing::HasSubstr;

enum class Speed { kSlow, kFast };

struct TestOptions {
  int64_t steps = 100;
  double rate = 1e-8;
  bool quiet = false;
  std::string name;
  std::vector<std::string> files;
  AutoOr<int64_t> micro;
  Speed speed = Speed::kSlow;
};

class OptionsTest : public testing::Test {
 protected:
  OptionsTest() {
    table_.set_section_description("run", "How it runs.");
    table_.add("run.steps", options_.steps,
               {.doc = "Optimizer steps.", .resume = ResumeRule::kIfRequested, .unit = "steps"}, at_least<int64_t>(1));
    table_.add("run.rate", options_.rate,
               {.doc = "Rate.",
                .resume = ResumeRule::kIfRequested,
                .hints = {{.names = {"pace"}}, {.names = {"tempo"}, .text = "60 / run.rate"}}},
               exceeds(0.0));
    table_.add("run.quiet", options_.quiet, {.doc = "Quiet.", .resume = ResumeRule::kFree});
    table_.add("run.name", options_.name, {.doc = "Name.", .resume = ResumeRule::kNever});
    table_.add("run.files", options_.files, {.doc = "Files.", .resume = ResumeRule::kNever});
    table_.add("run.micro_batch_size", options_.micro, {.doc = "Samples.", .resume = ResumeRule::kFree});
    table_.add_enum("run.speed", options_.speed, {{"slow", Speed::kSlow}, {"fast", Speed::kFast}},
                    {.doc = "Speed.", .resume = ResumeRule::kFree, .value_aliases = {{"quick", "fast"}}});
    table_.add_foreign_keys({"shoes", "socks"}, "no equivalent: remove it");
  }

  // The name contains the process number because tests run at the same time, each in its own
  // process.
  void read(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
    const auto path = std::filesystem::temp_directory_path() / fmt::format("vlmtrain_options_test_{}.yaml", getpid());
    std::ofstream(path) << yaml;
    table_.read(path, overrides);
  }

  std::string get_error(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
    try {
      read(yaml, overrides);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      return error.what();
    }
    ADD_FAILURE() << "no error";
    return "";
  }

  TestOptions options_;
  OptionTable table_;
};

TEST_F(OptionsTest, ReadsEveryTypeAndOverrides) {
  read(
      "run:\n  steps: 7\n  rate: 2e-3\n  quiet: true\n  name: a b\n  files: [x, y]\n  micro_batch_size: 4\n  speed: "
      "fast\n",
      {"run.steps=9", "run.micro_batch_size=auto", "run.files=[z]"});
  EXPECT_EQ(options_.steps, 9);
  EXPECT_DOUBLE_EQ(options_.rate, 2e-3);
  EXPECT_TRUE(options_.quiet);
  EXPECT_EQ(options_.name, "a b");
  EXPECT_EQ(options_.files, std::vector<std::string>{"z"});
  EXPECT_FALSE(options_.micro.has_value());
  EXPECT_EQ(options_.speed, Speed::kFast);
}

TEST_F(OptionsTest, ReportsAllErrorsTogether) {
  const std::string message = get_error("run:\n  stepz: 7\n  rate: -1\n  speed: warp\n", {"run.quiet=perhaps"});
  EXPECT_THAT(message, HasSubstr("4 errors"));
  EXPECT_THAT(message, HasSubstr(":2: unknown key run.stepz; did you mean run.steps?"));
  EXPECT_THAT(message, HasSubstr(":3: run.rate: must be greater than 0, not -1"));
  EXPECT_THAT(message, HasSubstr(":4: run.speed: must be one of slow, fast, not warp"));
  EXPECT_THAT(message, HasSubstr("command line: run.quiet: must be a boolean, not perhaps"));
}

TEST_F(OptionsTest, WrongTypesAndDuplicatesAreErrors) {
  EXPECT_THAT(get_error("run: {steps: 1.5}"), HasSubstr("must be an integer, not 1.5"));
  EXPECT_THAT(get_error("run: {steps: [1]}"), HasSubstr("must be an integer, not a list or section"));
  EXPECT_THAT(get_error("run: {steps: 1, steps: 2}"), HasSubstr("occurs twice"));
  EXPECT_THAT(get_error("- a\n"), HasSubstr("must contain sections"));
  EXPECT_THAT(get_error("run: [\n"), HasSubstr("is not YAML"));
  EXPECT_THAT(get_error("", {"run.steps"}), HasSubstr("key=value"));
}

TEST_F(OptionsTest, AKeyThatIsNestedAndDottedIsAnError) {
  EXPECT_THAT(get_error("run:\n  steps: 1\nrun.steps: 2\n"),
              HasSubstr(":3: run.steps occurs twice, first in line 2; keep one"));
  EXPECT_THAT(get_error("run.steps: 2\nrun: {speed: slow, steps: 1}\n"),
              HasSubstr(":2: run.steps occurs twice, first in line 1; keep one"));
  EXPECT_THAT(get_error("run:\n  steps: 1\nrun:\n  rate: 2\n"), HasSubstr(":3: run occurs twice, first in line 1"));
  EXPECT_NO_THROW(read("run.steps: 1\nrun: {speed: slow}\n"));
  EXPECT_NO_THROW(read("run.steps: 1\n", {"run.steps=2", "run.steps=3"}));
}

TEST_F(OptionsTest, ASectionWithoutSpacesAfterColonsIsAnError) {
  EXPECT_THAT(get_error("run:\n  steps:7\n"), HasSubstr(":1: run is a section"));
  EXPECT_THAT(get_error("run:\n  steps:7\n"), HasSubstr("run is a section, not steps:7"));
}

TEST_F(OptionsTest, ASecondDocumentAndAListAreErrors) {
  EXPECT_THAT(get_error("run:\n  steps: 7\n---\nrun:\n  steps: 8\n"), HasSubstr("contains 2 YAML documents"));
  EXPECT_NO_THROW(read("---\nrun:\n  steps: 7\n"));
  EXPECT_THAT(get_error("run:\n  - steps: 7\n"), HasSubstr("run is a section"));
}

TEST_F(OptionsTest, NumbersAreFinite) {
  EXPECT_THAT(get_error("run: {rate: .inf}\n"), HasSubstr("run.rate: must be a float, not .inf"));
  EXPECT_THAT(get_error("run: {rate: .nan}\n"), HasSubstr("run.rate: must be a float, not .nan"));
  double zero = 1;
  table_.add("run.slope", zero, {.doc = "", .resume = ResumeRule::kFree});
  read("run: {slope: -0.0}\n");
  EXPECT_EQ(table_.format_value("run.slope"), "0");
}

TEST_F(OptionsTest, AnOverrideHasOneValue) {
  EXPECT_THAT(get_error("", {"run.steps=4\n---\n5"}), HasSubstr("run.steps: the value contains 2 YAML documents"));
  read("", {"run.name="});
  EXPECT_EQ(options_.name, "");
}

TEST_F(OptionsTest, AnOverrideSplitBySpacesIsOneError) {
  const auto errors = get_error("", {"run.steps", "7", "run.rate", "=", "0.5", "run.name=a"});
  EXPECT_THAT(errors, HasSubstr("2 errors"));
  EXPECT_THAT(errors, HasSubstr("run.steps: an override is one argument without spaces: run.steps=7"));
  EXPECT_THAT(errors, HasSubstr("without spaces: run.rate=0.5"));
  EXPECT_THAT(get_error("", {"run.steps", "run.name=a"}), HasSubstr("is written key=value"));
  EXPECT_THAT(get_error("", {"run.steps", "="}), HasSubstr("is written key=value"));
}

TEST_F(OptionsTest, SuggestsKeysOfOtherSections) {
  EXPECT_THAT(get_error("steps: 7\n"), HasSubstr("unknown key steps; did you mean run.steps?"));
  EXPECT_THAT(get_error("walk:\n  steps: 7\n"), HasSubstr("did you mean run.steps?"));
  EXPECT_THAT(get_error("micro_batch_sise: 7\n"), HasSubstr("did you mean run.micro_batch_size?"));
  EXPECT_THAT(get_error("zzzzzzzz: 7\n"), HasSubstr("`vlmtrain options` lists all keys"));
}

TEST_F(OptionsTest, ExplainsKeysOfOtherTrainers) {
  EXPECT_THAT(get_error("pace: 7\n"), HasSubstr("unknown key pace; the equivalent in vlmtrain: run.rate"));
  EXPECT_THAT(get_error("run: {tempo: 7}\n"),
              HasSubstr("unknown key run.tempo; the equivalent in vlmtrain: 60 / run.rate"));
  EXPECT_THAT(get_error("pace: {steps: 3}\n"), HasSubstr("unknown key pace; the equivalent in vlmtrain: run.rate"));
  EXPECT_THAT(get_error("walk: {pace: 3}\n"), HasSubstr("unknown key walk.pace; the equivalent"));
  EXPECT_THAT(get_error("walk: {}\n"), HasSubstr("unknown key walk; "));
  EXPECT_THAT(get_error("", {"run.socks=2"}), HasSubstr("unknown key run.socks; no equivalent: remove it"));
}

TEST_F(OptionsTest, AHintBelongsToOneOptionAndNamesThoseWithItsName) {
  int64_t value = 0;
  const auto add = [&](const char* key, OptionHint hint) {
    table_.add(key, value, {.doc = "", .resume = ResumeRule::kFree, .hints = {std::move(hint)}});
  };
  EXPECT_THROW(add("run.speed_limit", {.names = {"pace"}}), InternalError);
  EXPECT_THROW(add("run.shoe_size", {.names = {"socks"}}), InternalError);
  EXPECT_THROW(add("run.distance", {.names = {"miles"}, .text = "nothing to set"}), InternalError);
  EXPECT_THROW(add("run.weight", {.names = {"speed"}}), InternalError);
  EXPECT_NO_THROW(add("run.velocity", {.names = {"quiet"}, .text = "run.velocity; run.quiet is silent"}));
  EXPECT_THROW(add("run.tempo", {.names = {"presto"}}), InternalError);
  EXPECT_THROW(table_.add_foreign_keys({"pace"}, "no equivalent"), InternalError);
  EXPECT_THROW(table_.add_foreign_keys({"rate"}, "no equivalent"), InternalError);
}

TEST_F(OptionsTest, FindsKeysByTheirLastComponent) {
  EXPECT_EQ(table_.find_key("run.rate"), "run.rate");
  EXPECT_EQ(table_.find_key("rate"), "run.rate");
  EXPECT_EQ(table_.find_key("walk.rate"), std::nullopt);
  int64_t value = 0;
  table_.add(
      "run.velocity", value,
      {.doc = "", .resume = ResumeRule::kFree, .hints = {{.names = {"quiet"}, .text = "run.velocity, run.quiet"}}});
  EXPECT_EQ(table_.find_key("quiet"), std::nullopt) << "other trainers mean another option";
}

TEST_F(OptionsTest, StructuredValuesHaveEachKeyOnce) {
  nlohmann::ordered_json value;
  table_.add_structured_option(
      "run.route", "list", [&] { return value; },
      [&](const nlohmann::ordered_json& json) {
        value = json;
        return std::nullopt;
      },
      {.doc = "", .resume = ResumeRule::kFree});
  read("run: {route: [{to: a}, {to: b}]}\n");
  EXPECT_EQ(value.dump(), R"([{"to":"a"},{"to":"b"}])");
  EXPECT_THAT(get_error("run: {route: [{to: a, to: b}]}\n"), HasSubstr("run.route: to occurs twice; keep one"));
  EXPECT_THAT(get_error("run: {route: [{[a]: b}]}\n"), HasSubstr("run.route: a key must be a word"));
}

TEST_F(OptionsTest, KnowsTheResumeRuleOfEachKey) {
  EXPECT_EQ(table_.list_keys(ResumeRule::kIfRequested), (std::vector<std::string>{"run.steps", "run.rate"}));
  EXPECT_EQ(table_.list_keys(ResumeRule::kNever), (std::vector<std::string>{"run.name", "run.files"}));
  EXPECT_EQ(table_.find_resume_rule("run.quiet"), ResumeRule::kFree);
  EXPECT_FALSE(table_.find_resume_rule("run.pace"));
}

TEST_F(OptionsTest, ReportsIndentationErrorsWithTheirLine) {
  EXPECT_THAT(get_error("run:\n\tsteps: 7\n"),
              HasSubstr(":2: this line is indented with a tab; YAML allows only spaces"));
  EXPECT_THAT(get_error("run:\n  steps: 7\n\trate: 1\n"), HasSubstr(":3: this line is indented with a tab"));
  EXPECT_THAT(get_error("run:\n  steps: 7\n   rate: 1\n"), HasSubstr(":3: is not YAML (illegal map value): this line"));
  EXPECT_THAT(get_error("run: {name: a: b}\n"), HasSubstr("is not YAML"));
}

TEST_F(OptionsTest, SelfReferencingAliasesTerminate) {
  EXPECT_THAT(get_error("x: &x\n  <<: *x\n"), HasSubstr(":2: unknown key x.<<"));
  EXPECT_THAT(get_error("run: &x\n  <<: *x\n"), HasSubstr(":2: unknown key run.<<"));
  EXPECT_THAT(get_error("run: {files: &x [*x]}"), HasSubstr("run.files: must be a list of strings"));
  EXPECT_THAT(get_error("&x ? *x\n: 1\n"), HasSubstr("is not YAML"));
}

TEST_F(OptionsTest, AliasesOfAliasesDoNotMultiply) {
  std::string bomb = "a0: &a0 {k: 1}\n";
  for (int i = 1; i < 40; ++i)
    bomb += fmt::format("a{}: &a{} {{x: *a{}, y: *a{}, z: *a{}}}\n", i, i, i - 1, i - 1, i - 1);
  EXPECT_THAT(get_error(bomb), AllOf(HasSubstr("100 errors"), HasSubstr("unknown key a1.x")));
}

TEST_F(OptionsTest, DeepNestingIsAnError) {
  EXPECT_THAT(get_error("run: " + std::string(200'000, '[')), HasSubstr("too deep"));
  EXPECT_THAT(get_error("run: " + std::string(200'000, '{')), HasSubstr("too deep"));
  EXPECT_THAT(get_error("", {"run.files=" + std::string(200'000, '[')}), HasSubstr("too deep"));
  std::string blocks;
  for (int i = 0; i < 3000; ++i) blocks += std::string(static_cast<size_t>(i), ' ') + "a:\n";
  EXPECT_THAT(get_error(blocks), HasSubstr("too deep"));
}

TEST_F(OptionsTest, MessagesQuoteAtMostALine) {
  const std::string long_text(100'000, 'x');
  for (const std::string& text : {long_text + ": 1\n", "run: {" + long_text + ": 1}", "run: {steps: " + long_text + "}",
                                  "run: {speed: " + long_text + "}", "run: {name: *" + long_text + "}"}) {
    EXPECT_LT(get_error(text).size(), 500U);
  }
  EXPECT_LT(get_error("", {long_text}).size(), 400U);
  EXPECT_LT(get_error("", {"run.steps=" + long_text}).size(), 400U);
  EXPECT_LT(get_error("", {"run.steps=[" + long_text}).size(), 400U);
}

TEST_F(OptionsTest, RefusesNulInValues) {
  EXPECT_THAT(get_error("run: {name: \"a.json\\0b\"}"), HasSubstr("run.name: a value cannot contain a NUL character"));
  EXPECT_THAT(get_error("run: {files: [a, \"b\\0\"]}"), HasSubstr("run.files: a value cannot contain a NUL character"));
  EXPECT_THAT(get_error("run: {speed: \"fast\\0\"}"), HasSubstr("NUL"));
}

TEST_F(OptionsTest, KeepsPathsThatAreNotUtf8) {
  read("", {"run.name=caf\xE9.json"});
  EXPECT_EQ(options_.name, "caf\xE9.json");
  // YAML is UTF-8, so the resolved configuration shows the byte.
  EXPECT_THAT(table_.to_yaml(), HasSubstr("caf\\\\xe9.json"));
  read("run: {name: \"a\\e[2J\"}");
  EXPECT_EQ(options_.name, "a\x1b[2J");
  EXPECT_EQ(to_printable_lines(table_.to_yaml()), table_.to_yaml());
  read(table_.to_yaml());
  EXPECT_EQ(options_.name, "a\x1b[2J");
}

TEST_F(OptionsTest, ResolvedYamlReadsBackAsTheSame) {
  read("run: {name: 'true: x', files: ['', a], rate: 0.1, micro_batch_size: 3, speed: fast}");
  const std::string first = table_.to_yaml();
  options_ = TestOptions{};
  read(first);
  EXPECT_EQ(table_.to_yaml(), first);
  EXPECT_EQ(options_.name, "true: x");
  EXPECT_EQ(options_.micro, 3);
}

TEST_F(OptionsTest, AnEarlierNameOfAValueIsAccepted) {
  read("run: {speed: quick}");
  EXPECT_EQ(options_.speed, Speed::kFast);
  EXPECT_EQ(table_.format_value("run.speed"), "fast");
}

TEST_F(OptionsTest, MarkdownHasEverythingThatIsDeclared) {
  const std::string markdown = table_.to_markdown();
  EXPECT_THAT(markdown,
              HasSubstr("| `run.steps` | integer (steps, at least 1) | `100` | changed | Optimizer steps. |\n"));
  EXPECT_THAT(markdown, HasSubstr("| `run.rate` | float (greater than 0) | `1e-08` | changed | Rate. |\n"));
  EXPECT_THAT(markdown, HasSubstr("| `run.name` | string | `\"\"` | never | Name. |\n"));
  EXPECT_THAT(markdown, HasSubstr("| `run.quiet` | boolean | `false` | free | Quiet. |\n"));
  EXPECT_THAT(markdown, HasSubstr("free | Speed. `quick` is an alias of `fast`. |\n"));
  EXPECT_THAT(markdown, HasSubstr("| `pace` | run.rate |\n| `tempo` | 60 / run.rate |\n"));
  EXPECT_THAT(markdown, HasSubstr("| `shoes`, `socks` | no equivalent: remove it |\n"));
}

TEST_F(OptionsTest, SetsAMapWholeOrByEntry) {
  std::map<std::string, std::string> columns;
  const ValueCheck<std::map<std::string, std::string>> allowed{
      "for a and b", [](const auto& map) {
        return std::ranges::all_of(map, [](const auto& entry) { return entry.first == "a" || entry.first == "b"; });
      }};
  table_.add("run.columns", columns, {.doc = "Columns.", .resume = ResumeRule::kFree}, allowed);
  EXPECT_EQ(table_.format_value("run.columns"), "{}");
  table_.read({}, {"run.columns={a: x y}", "run.columns.b=3"});
  EXPECT_EQ(columns, (std::map<std::string, std::string>{{"a", "x y"}, {"b", "3"}}));
  EXPECT_EQ(table_.format_value("run.columns"), "{a: x y, b: 3}");
  table_.read({}, {"run.columns.b=4"});
  EXPECT_EQ(columns.at("b"), "4");
  read("run:\n  columns:\n    a: from the file\n", {"run.columns.b=5"});
  EXPECT_EQ(columns, (std::map<std::string, std::string>{{"a", "from the file"}, {"b", "5"}}));
  for (const char* const override_text : {"run.columns={c: x}", "run.columns.c=x", "run.columns=[a]",
                                          "run.columns={a: [1]}", "run.columns.a={b: c}", "run.columns=x"}) {
    EXPECT_THAT(get_error("", {override_text}), HasSubstr("must be")) << override_text;
  }
  EXPECT_THAT(get_error("", {"run.column.a=x"}), HasSubstr("unknown key run.column.a"));
  EXPECT_THAT(get_error("", {"run.columns={a: \"x\\0\"}"}), HasSubstr("NUL"));
}

TEST(Nearest, FindsOnlySimilarWords) {
  EXPECT_EQ(find_nearest_word("max_step", {"max_steps", "seed"}), "max_steps");
  EXPECT_FALSE(find_nearest_word("banana", {"max_steps", "seed"}).has_value());
  EXPECT_FALSE(find_nearest_word("", {"as"}).has_value());
  EXPECT_FALSE(find_nearest_word("k0", {"as"}).has_value());
}

}  // namespace
}  // namespace vlmtrain
