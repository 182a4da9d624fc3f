#include "vlmtrain/train/run_changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "vlmtrain/base/error.h"

namespace vlmtrain::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr MayChange kAll[] = {MayChange::kFreely, MayChange::kOnPurpose, MayChange::kNever};

/// All keys of the configuration, in the order of their documentation.
std::vector<std::string> all_keys() {
  Config config;
  std::istringstream lines(declare(config).to_markdown());
  std::vector<std::string> keys;
  constexpr std::string_view kRow = "| `";
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(kRow)) keys.push_back(line.substr(kRow.size(), line.find('`', kRow.size()) - kRow.size()));
  }
  return keys;
}

/// A key that is new has to be put into one of the lists.
TEST(RunChangesTest, EveryKeyIsInOneOfTheLists) {
  std::multiset<std::string> listed;
  for (const auto how : kAll) {
    for (const auto key : keys_that_change(how)) listed.emplace(key);
  }
  const auto keys = all_keys();
  EXPECT_GT(keys.size(), 60U);
  EXPECT_EQ(listed, std::multiset<std::string>(keys.begin(), keys.end()));
}

/// docs/resuming.md has a heading for each list, and the keys in the first column of its table.
TEST(RunChangesTest, TheDocumentationHasTheSameLists) {
  std::ifstream page(std::string(VLMTRAIN_SOURCE_DIR) + "/docs/resuming.md");
  const std::map<std::string, MayChange> headings{{"## What may change freely", MayChange::kFreely},
                                                  {"## What may change with the word", MayChange::kOnPurpose},
                                                  {"## What never changes", MayChange::kNever}};
  std::map<MayChange, std::multiset<std::string>> shown;
  std::optional<MayChange> list;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("## ")) {
      const auto heading = headings.find(line);
      list = heading == headings.end() ? std::nullopt : std::optional(heading->second);
    }
    if (!list || !line.starts_with("| `")) continue;
    std::istringstream cell(line.substr(1, line.find('|', 1) - 1));
    for (std::string text; std::getline(cell, text, '`');) {
      if (text.find('.') != std::string::npos) shown[*list].insert(text);
    }
  }
  for (const auto how : kAll) {
    const auto keys = keys_that_change(how);
    EXPECT_EQ(shown[how], std::multiset<std::string>(keys.begin(), keys.end())) << static_cast<int>(how);
  }
}

TEST(RunFingerprintTest, HasAllThatMayNotChangeFreely) {
  const auto fingerprint = run_fingerprint(Config{}, 100);
  for (const auto key : keys_that_change(MayChange::kFreely)) EXPECT_FALSE(fingerprint.contains(key)) << key;
  for (const auto how : {MayChange::kOnPurpose, MayChange::kNever}) {
    for (const auto key : keys_that_change(how)) {
      // The number of steps stands for them.
      const bool is_length = key == "training.max_steps" || key == "training.epochs";
      EXPECT_NE(fingerprint.contains(key), is_length) << key;
    }
  }
}

TEST(RunFingerprintTest, HasTheNumbersOfSamplesAndSteps) {
  Config config;
  config.training.global_batch_size = 10;
  const auto with = [&](int64_t samples) { return run_fingerprint(config, samples); };
  EXPECT_EQ(with(100), with(100));
  EXPECT_NE(with(100), with(99)) << "as many steps of another data set";
  const auto before = with(100);
  config.training.epochs = 2;
  EXPECT_NE(with(100), before);
}

class CheckChangesTest : public testing::Test {
 protected:
  std::vector<SettingChange> changes_with(const std::vector<std::string>& overrides) {
    Config config;
    declare(config).read("", overrides);
    return changes_since(run_fingerprint(Config{}, 100), run_fingerprint(config, 100));
  }
  std::string refusal(const std::vector<std::string>& overrides, Resume resume) {
    try {
      check_changes(changes_with(overrides), resume, "run/checkpoints/step-3");
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      return error.what();
    }
    return {};
  }
};

TEST_F(CheckChangesTest, NothingChangedIsNothingToSay) {
  EXPECT_EQ(refusal({}, Resume::kAuto), "");
  EXPECT_EQ(refusal({"training.resume=changed", "output.keep=7", "memory.recompute=all"}, Resume::kAuto), "");
}

TEST_F(CheckChangesTest, WithoutTheWordTheRefusalNamesIt) {
  const auto message = refusal({"training.learning_rate=2e-5", "training.epochs=3"}, Resume::kAuto);
  EXPECT_THAT(message,
              AllOf(HasSubstr("run/checkpoints/step-3: "), HasSubstr("training.learning_rate: was 1e-05, is 2e-05"),
                    HasSubstr("steps (training.max_steps or training.epochs): was 7, is 19"),
                    HasSubstr("another output.dir"), HasSubstr("training.resume=changed goes on")));
  EXPECT_EQ(refusal({"training.learning_rate=2e-5", "training.epochs=3"}, Resume::kChanged), "");
}

TEST_F(CheckChangesTest, WhatNeverChangesIsRefusedWithTheWordTooAndHasAnotherRemedy) {
  for (const Resume resume : {Resume::kAuto, Resume::kChanged}) {
    const auto message = refusal({"lora.rank=8", "training.learning_rate=2e-5"}, resume);
    EXPECT_THAT(message, AllOf(HasSubstr("lora.rank: was 0, is 8"), HasSubstr("lora.rank cannot change within a run"),
                               HasSubstr("model.path=run/checkpoints/step-3"), Not(HasSubstr("resume=changed"))));
  }
}

TEST_F(CheckChangesTest, WhatDiffersIsNamedWhateverItsType) {
  const auto changes = changes_since({{"training.seed", 5}, {"same", "x"}},
                                     {{"training.seed", "6"}, {"same", "x"}, {"model.path", "tiny"}});
  std::vector<std::string> texts;
  for (const auto& change : changes) texts.push_back(change.text());
  EXPECT_THAT(texts, ElementsAre("training.seed: was 5, is 6", "model.path: was not there, is tiny"));
}

/// A checkpoint of a version that did not have a key did as its default does.
TEST_F(CheckChangesTest, AKeyThatIsNewSinceTheCheckpointStandsAtItsDefault) {
  auto saved = run_fingerprint(Config{}, 100);
  saved.erase("training.schedule_from");
  Config config;
  EXPECT_TRUE(changes_since(saved, run_fingerprint(config, 100)).empty());
  config.schedule_from = ScheduleFrom::kChange;
  EXPECT_EQ(changes_since(saved, run_fingerprint(config, 100)).size(), 1U);
}

}  // namespace
}  // namespace vlmtrain::train
