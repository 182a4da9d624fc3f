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

constexpr SettingChangePolicy kPolicies[] = {SettingChangePolicy::kAllowed, SettingChangePolicy::kIfRequested,
                                             SettingChangePolicy::kNever};

/// Returns all keys of the configuration in the order of their documentation.
std::vector<std::string> list_all_keys() {
  Config config;
  std::istringstream lines(declare_options(config).to_markdown());
  std::vector<std::string> keys;
  constexpr std::string_view kRow = "| `";
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(kRow)) keys.push_back(line.substr(kRow.size(), line.find('`', kRow.size()) - kRow.size()));
  }
  return keys;
}

/// A new key has to be added to one of the lists.
TEST(RunChangesTest, EveryKeyIsInOneOfTheLists) {
  std::multiset<std::string> listed_keys;
  for (const auto policy : kPolicies) {
    for (const auto key : get_keys_with_policy(policy)) listed_keys.emplace(key);
  }
  const auto keys = list_all_keys();
  EXPECT_GT(keys.size(), 60U);
  EXPECT_EQ(listed_keys, std::multiset<std::string>(keys.begin(), keys.end()));
}

/// docs/resuming.md has a heading for each list, and the keys in the first column of its table.
TEST(RunChangesTest, TheDocumentationHasTheSameLists) {
  std::ifstream page(std::string(VLMTRAIN_SOURCE_DIR) + "/docs/resuming.md");
  const std::map<std::string, SettingChangePolicy> headings{
      {"## What may change freely", SettingChangePolicy::kAllowed},
      {"## What may change with the word", SettingChangePolicy::kIfRequested},
      {"## What never changes", SettingChangePolicy::kNever}};
  std::map<SettingChangePolicy, std::multiset<std::string>> documented_keys;
  std::optional<SettingChangePolicy> list;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("## ")) {
      const auto heading = headings.find(line);
      list = heading == headings.end() ? std::nullopt : std::optional(heading->second);
    }
    if (!list || !line.starts_with("| `")) continue;
    std::istringstream cell(line.substr(1, line.find('|', 1) - 1));
    for (std::string text; std::getline(cell, text, '`');) {
      if (text.find('.') != std::string::npos) documented_keys[*list].insert(text);
    }
  }
  for (const auto policy : kPolicies) {
    const auto keys = get_keys_with_policy(policy);
    EXPECT_EQ(documented_keys[policy], std::multiset<std::string>(keys.begin(), keys.end()))
        << static_cast<int>(policy);
  }
}

TEST(RunFingerprintTest, HasAllKeysThatNeedPermission) {
  const auto fingerprint = make_run_fingerprint(Config{}, 100);
  for (const auto key : get_keys_with_policy(SettingChangePolicy::kAllowed))
    EXPECT_FALSE(fingerprint.contains(key)) << key;
  for (const auto policy : {SettingChangePolicy::kIfRequested, SettingChangePolicy::kNever}) {
    for (const auto key : get_keys_with_policy(policy)) {
      // The number of steps stands for these keys.
      const bool is_length = key == "training.max_steps" || key == "training.epochs";
      EXPECT_NE(fingerprint.contains(key), is_length) << key;
    }
  }
}

TEST(RunFingerprintTest, HasTheNumbersOfSamplesAndSteps) {
  Config config;
  config.training.global_batch_size = 10;
  const auto make_fingerprint = [&](int64_t samples) { return make_run_fingerprint(config, samples); };
  EXPECT_EQ(make_fingerprint(100), make_fingerprint(100));
  EXPECT_NE(make_fingerprint(100), make_fingerprint(99)) << "as many steps of another data set";
  const auto old_fingerprint = make_fingerprint(100);
  config.training.epochs = 2;
  EXPECT_NE(make_fingerprint(100), old_fingerprint);
}

class CheckChangesTest : public testing::Test {
 protected:
  std::vector<SettingChange> collect_changes(const std::vector<std::string>& overrides) {
    Config config;
    declare_options(config).read("", overrides);
    return find_setting_changes(make_run_fingerprint(Config{}, 100), make_run_fingerprint(config, 100));
  }
  std::string get_refusal(const std::vector<std::string>& overrides, ResumePolicy resume) {
    try {
      check_setting_changes(collect_changes(overrides), resume, "run/checkpoints/step-3");
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      return error.what();
    }
    return {};
  }
};

TEST_F(CheckChangesTest, AcceptsUnchangedSettings) {
  EXPECT_EQ(get_refusal({}, ResumePolicy::kAuto), "");
  EXPECT_EQ(get_refusal({"training.resume=changed", "output.save_total_limit=7", "memory.recompute=all"},
                        ResumePolicy::kAuto),
            "");
}

TEST_F(CheckChangesTest, RefusalSuggestsResumeChanged) {
  const auto message = get_refusal({"training.learning_rate=2e-5", "training.epochs=3"}, ResumePolicy::kAuto);
  EXPECT_THAT(message,
              AllOf(HasSubstr("run/checkpoints/step-3: "), HasSubstr("training.learning_rate: was 1e-05, is 2e-05"),
                    HasSubstr("steps (training.max_steps or training.epochs): was 7, is 19"),
                    HasSubstr("another output.dir"), HasSubstr("training.resume=changed resumes")));
  EXPECT_EQ(get_refusal({"training.learning_rate=2e-5", "training.epochs=3"}, ResumePolicy::kChanged), "");
}

TEST_F(CheckChangesTest, FixedKeysAreAlwaysRefused) {
  for (const ResumePolicy resume : {ResumePolicy::kAuto, ResumePolicy::kChanged}) {
    const auto message = get_refusal({"lora.rank=8", "training.learning_rate=2e-5"}, resume);
    EXPECT_THAT(message, AllOf(HasSubstr("lora.rank: was 0, is 8"), HasSubstr("lora.rank cannot change within a run"),
                               HasSubstr("model.path=run/checkpoints/step-3"), Not(HasSubstr("resume=changed"))));
  }
}

TEST_F(CheckChangesTest, NamesDifferencesOfAnyType) {
  const auto changes = find_setting_changes({{"training.seed", 5}, {"same", "x"}},
                                            {{"training.seed", "6"}, {"same", "x"}, {"model.path", "tiny"}});
  std::vector<std::string> texts;
  for (const auto& change : changes) texts.push_back(change.text());
  EXPECT_THAT(texts, ElementsAre("training.seed: was 5, is 6", "model.path: was not set, is tiny"));
}

/// A version without the key behaved like the key's default.
TEST_F(CheckChangesTest, NewKeysHaveTheirDefault) {
  auto saved = make_run_fingerprint(Config{}, 100);
  saved.erase("training.schedule_from");
  Config config;
  EXPECT_TRUE(find_setting_changes(saved, make_run_fingerprint(config, 100)).empty());
  config.schedule_origin = ScheduleOrigin::kLastChange;
  EXPECT_EQ(find_setting_changes(saved, make_run_fingerprint(config, 100)).size(), 1U);
}

}  // namespace

}  // namespace vlmtrain::train
