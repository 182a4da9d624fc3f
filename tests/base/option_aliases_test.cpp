#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/options.h"

namespace vlmtrain {
namespace {

using testing::HasSubstr;
using testing::Not;

/// An option that was called run.keep and is called run.save_total_limit.
class OptionAliasesTest : public testing::Test {
 protected:
  OptionAliasesTest() {
    table_.set_section_description("run", "How it runs.");
    table_.add("run.save_total_limit", limit_,
               {.doc = "Number of checkpoints.", .resume = ResumeRule::kFree, .aliases = {"run.keep"}},
               at_least<int64_t>(1));
  }

  // The name contains the process number because tests run at the same time, each in its own
  // process.
  void read(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
    const auto path = std::filesystem::temp_directory_path() / fmt::format("vlmtrain_aliases_test_{}.yaml", getpid());
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

  int64_t limit_ = 2;
  OptionTable table_;
};

TEST_F(OptionAliasesTest, AnAliasSetsItsKey) {
  read("run: {keep: 3}");
  EXPECT_EQ(limit_, 3);
  read("", {"run.keep=4"});
  EXPECT_EQ(limit_, 4);
  EXPECT_EQ(table_.format_value("run.save_total_limit"), "4");
}

TEST_F(OptionAliasesTest, AnOverrideAppliesByEitherName) {
  read("run: {keep: 3}", {"run.save_total_limit=5"});
  EXPECT_EQ(limit_, 5);
  read("run: {save_total_limit: 3}", {"run.keep=6", "run.keep=7"});
  EXPECT_EQ(limit_, 7);
}

TEST_F(OptionAliasesTest, BothNamesInOneSourceAreAnError) {
  const std::string expected = "run.keep and run.save_total_limit are the same option; keep run.save_total_limit";
  EXPECT_THAT(get_error("run:\n  keep: 3\n  save_total_limit: 3\n"), HasSubstr(":3: " + expected));
  EXPECT_THAT(get_error("run:\n  save_total_limit: 3\n  keep: 3\n"),
              HasSubstr(":3: run.save_total_limit and run.keep are the same option; keep run.save_total_limit"));
  EXPECT_THAT(get_error("", {"run.keep=3", "run.save_total_limit=3"}), HasSubstr("command line: " + expected));
}

TEST_F(OptionAliasesTest, ErrorsNameWhatWasWritten) {
  EXPECT_THAT(get_error("run: {keep: 0}"), HasSubstr("run.keep: must be at least 1, not 0"));
  EXPECT_THAT(get_error("run: {keep: {a: 1}}"), HasSubstr("run.keep: must be an integer"));
  EXPECT_THAT(get_error("", {"run.keep", "3"}), HasSubstr("run.keep=3"));
}

TEST_F(OptionAliasesTest, OutputHasTheKeyOnly) {
  read("run: {keep: 3}");
  EXPECT_EQ(table_.to_yaml(), "run:\n  save_total_limit: 3\n");
  EXPECT_THAT(table_.to_markdown(), HasSubstr("| Number of checkpoints. Alias: `run.keep`. |"));
  EXPECT_THAT(get_error("run: {save_totl_limit: 3}"), HasSubstr("did you mean run.save_total_limit?"));
  EXPECT_THAT(get_error("keep: 3"), HasSubstr("unknown key keep; did you mean run.save_total_limit?"));
  EXPECT_THAT(get_error("run: {kepe: 3}"), HasSubstr("did you mean run.save_total_limit?"));
  EXPECT_THAT(get_error("run: {keepp: 3}"), Not(HasSubstr("run.keep?")));
}

TEST_F(OptionAliasesTest, ANameBelongsToOneOption) {
  int64_t value = 0;
  const auto add = [&](const char* key, std::vector<std::string> aliases) {
    table_.add(key, value, {.doc = "", .resume = ResumeRule::kFree, .aliases = std::move(aliases)});
  };
  EXPECT_THROW(add("run.limit", {"run.keep"}), InternalError) << "an alias of two keys";
  EXPECT_THROW(add("run.most", {"run.save_total_limit"}), InternalError) << "a key as an alias";
  EXPECT_THROW(add("run.kept", {"run.kept"}), InternalError) << "a key as its own alias";
  EXPECT_THROW(add("run.keep", {}), InternalError) << "an alias as a key";
  EXPECT_THROW(add("run.save_total_limit", {}), InternalError) << "a key twice";
  EXPECT_THROW(add("limit", {}), InternalError) << "a key without a section";
}

}  // namespace
}  // namespace vlmtrain
