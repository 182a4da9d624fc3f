#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "vlmtrain/base/error.h"
#include "vlmtrain/train/saved_settings.h"

namespace vlmtrain::train {

namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

/// docs/how-to/resume.md has a list item for each rule, with examples of its keys.
TEST(ResumeRulesTest, TheDocumentationNamesKeysUnderTheirRule) {
  Config config;
  const OptionTable options = declare_options(config);
  std::ifstream page(std::string(VLMTRAIN_SOURCE_DIR) + "/docs/how-to/resume.md");
  const std::map<std::string, ResumeRule> items{
      {"- `free`", ResumeRule::kFree}, {"- `changed`", ResumeRule::kIfRequested}, {"- `never`", ResumeRule::kNever}};
  std::map<ResumeRule, int> num_keys;
  for (std::string line; std::getline(page, line);) {
    const auto item = items.find(line.substr(0, line.find(':')));
    if (item == items.end()) continue;
    std::istringstream words(line.substr(item->first.size()));
    for (std::string text; std::getline(words, text, '`');) {
      const bool is_key = text.size() > 1 && text.find('.') != std::string::npos;
      if (!is_key || text.find_first_of(" *=") != std::string::npos) continue;
      EXPECT_EQ(options.find_resume_rule(text), item->second) << text;
      ++num_keys[item->second];
    }
  }
  for (const auto& [name, rule] : items) EXPECT_GE(num_keys[rule], 2) << name;
}

TEST(RunFingerprintTest, HasAllKeysThatNeedPermission) {
  Config config;
  const OptionTable options = declare_options(config);
  const auto fingerprint = make_run_fingerprint(config, 100);
  for (const auto& key : options.list_keys(ResumeRule::kFree)) EXPECT_FALSE(fingerprint.contains(key)) << key;
  for (const auto rule : {ResumeRule::kIfRequested, ResumeRule::kNever}) {
    EXPECT_GT(options.list_keys(rule).size(), 10U);
    for (const auto& key : options.list_keys(rule)) {
      // The number of steps stands for these keys.
      const bool is_length = key == keys::training::kMaxSteps || key == keys::training::kEpochs;
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
