#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "base/captured_log.h"
#include "planner/user_error.h"
#include "train/small_run.h"
#include "vlmtrain/data/data_set.h"
#include "vlmtrain/data/index/hold_out.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/train/components.h"

namespace vlmtrain::train {

namespace {

namespace fs = std::filesystem;
using planner::get_usage_error;
using testing::HasSubstr;

/// A run that holds a fourth of its samples out of training and resumes after the data set has
/// changed.
class HeldOutRunTest : public SmallRunTest {
 protected:
  HeldOutRunTest() {
    config_.data.train = (folder() / "d.json").string();
    config_.data.image_root.clear();
    config_.data.eval = "0.25";
    config_.training.global_batch_size = config_.training.micro_batch_size.emplace(3);
    config_.output.save_steps = 1;
    config_.output.save_total_limit = 9;
    write_records(make_numbers(12));
  }

  static std::vector<int> make_numbers(int count) {
    std::vector<int> numbers(static_cast<size_t>(count));
    std::ranges::generate(numbers, [next = 0]() mutable { return next++; });
    return numbers;
  }

  void write_records(const std::vector<int>& numbers) const {
    auto records = nlohmann::json::array();
    for (const int number : numbers) {
      records.push_back({{"id", fmt::format("s{}", number)},
                         {"question", fmt::format("number {}?", number)},
                         {"answer", fmt::format("it is {}", number)}});
    }
    io::write_file(folder() / "d.json", records.dump());
  }

  static std::set<std::string> list_ids(const io::Records& records) {
    std::set<std::string> ids;
    for (int64_t i = 0; i < records.size(); ++i) ids.insert(records.at(i).id);
    return ids;
  }
  std::set<std::string> list_held_out() const { return list_ids(*open_evaluation_records(config_)); }
  std::set<std::string> list_trained() const { return list_ids(*open_training_records(config_)); }

  /// Runs two steps, as if it had been stopped after the second.
  void train_two_steps() {
    run_training();
    fs::remove_all(run_folder() / "checkpoints/step-3");
  }
};

TEST_F(HeldOutRunTest, SplitFollowsTheSeed) {
  const auto expected = data::draw_hold_out_split(12, 0.25, static_cast<uint64_t>(config_.training.seed)).held_out;
  std::set<std::string> ids;
  for (const int64_t index : expected) ids.insert(fmt::format("s{}", index));
  EXPECT_EQ(list_held_out(), ids);
  train_two_steps();
  EXPECT_EQ(list_held_out(), ids);
  fs::last_write_time(folder() / "d.json", fs::file_time_type::clock::now());
  EXPECT_EQ(list_held_out(), ids) << "a copy of the file";
  fs::remove(run_folder() / "held_out.json");
  EXPECT_EQ(list_held_out(), ids) << "as of older versions";
  EXPECT_EQ(run_training().steps, kSteps);
}

TEST_F(HeldOutRunTest, AddedRecordsAreSplitSeparately) {
  const auto held_out_before = list_held_out(), trained_before = list_trained();
  train_two_steps();
  write_records(make_numbers(20));
  config_.resume_policy = ResumePolicy::kChanged;
  config_.training.max_steps = kSteps + 1;
  run_training();
  EXPECT_TRUE(std::ranges::includes(list_held_out(), held_out_before));
  EXPECT_TRUE(std::ranges::includes(list_trained(), trained_before));
  EXPECT_EQ(list_held_out().size(), 5U);
  // Once more, from the run's own record.
  const auto held_out_second = list_held_out();
  write_records(make_numbers(28));
  EXPECT_TRUE(std::ranges::includes(list_held_out(), held_out_second));
  EXPECT_EQ(list_held_out().size(), 7U);
}

TEST_F(HeldOutRunTest, ReorderedRecordsKeepTheirSplit) {
  const auto held_out_before = list_held_out();
  train_two_steps();
  auto reversed = make_numbers(12);
  std::ranges::reverse(reversed);
  write_records(reversed);
  EXPECT_EQ(list_held_out(), held_out_before);
  const CapturedLog log;
  EXPECT_EQ(run_training().steps, kSteps);
  EXPECT_THAT(log.text(), HasSubstr("3 of the 3 held-out samples exist"));
  EXPECT_EQ(list_held_out(), held_out_before);
}

TEST_F(HeldOutRunTest, RejectsReorderedRecordsWithoutCheck) {
  config_.data.check_at_start = false;
  auto many_numbers = make_numbers(1200);
  write_records(many_numbers);
  train_two_steps();
  std::ranges::reverse(many_numbers);
  write_records(many_numbers);
  EXPECT_THAT(get_usage_error([this] { run_training(); }), HasSubstr("data.check_at_start=false"));
}

}  // namespace

}  // namespace vlmtrain::train
