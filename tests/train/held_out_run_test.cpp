#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "base/captured_log.h"
#include "planner/user_error.h"
#include "train/small_run.h"
#include "vlmtrain/data/held_out.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/train/setup.h"

namespace vlmtrain::train {
namespace {

namespace fs = std::filesystem;
using planner::message_of;
using testing::HasSubstr;

/// A run that holds a fourth of its samples out of training, and goes on after the data set has changed.
class HeldOutRunTest : public SmallRunTest {
 protected:
  HeldOutRunTest() {
    config_.data.train = (folder() / "d.json").string();
    config_.data.image_root.clear();
    config_.data.eval = "0.25";
    config_.training.global_batch_size = config_.training.micro_batch_size.emplace(3);
    config_.output.save_steps = 1;
    config_.output.keep = 9;
    put(numbered(12));
  }

  static std::vector<int> numbered(int count) {
    std::vector<int> numbers(static_cast<size_t>(count));
    std::ranges::generate(numbers, [next = 0]() mutable { return next++; });
    return numbers;
  }

  void put(const std::vector<int>& numbers) const {
    auto records = nlohmann::json::array();
    for (const int number : numbers) {
      records.push_back({{"id", fmt::format("s{}", number)},
                         {"question", fmt::format("number {}?", number)},
                         {"answer", fmt::format("it is {}", number)}});
    }
    io::write_file(folder() / "d.json", records.dump());
  }

  static std::set<std::string> ids_of(const io::Records& records) {
    std::set<std::string> ids;
    for (int64_t i = 0; i < records.size(); ++i) ids.insert(records.at(i).id);
    return ids;
  }
  std::set<std::string> held_out() const { return ids_of(*evaluation_records(config_)); }
  std::set<std::string> trained() const { return ids_of(*training_records(config_)); }

  /// As one that was stopped after its second step.
  void train_two_steps() {
    train_well();
    fs::remove_all(run_folder() / "checkpoints/step-3");
  }
};

TEST_F(HeldOutRunTest, OrdinaryRunsDrawAsTheSeedSays) {
  const auto wanted = data::hold_out(12, 0.25, static_cast<uint64_t>(config_.training.seed)).held_out;
  std::set<std::string> ids;
  for (const int64_t place : wanted) ids.insert(fmt::format("s{}", place));
  EXPECT_EQ(held_out(), ids);
  train_two_steps();
  EXPECT_EQ(held_out(), ids);
  fs::last_write_time(folder() / "d.json", fs::file_time_type::clock::now());
  EXPECT_EQ(held_out(), ids) << "a copy of the file";
  fs::remove(run_folder() / "held_out.json");
  EXPECT_EQ(held_out(), ids) << "as of older versions";
  EXPECT_EQ(train_well().steps, kSteps);
}

TEST_F(HeldOutRunTest, WhatIsAddedIsDividedByItself) {
  const auto before = held_out(), trained_before = trained();
  train_two_steps();
  put(numbered(20));
  config_.resume = Resume::kChanged;
  config_.training.max_steps = kSteps + 1;
  train_well();
  EXPECT_TRUE(std::ranges::includes(held_out(), before));
  EXPECT_TRUE(std::ranges::includes(trained(), trained_before));
  EXPECT_EQ(held_out().size(), 5U);
  // Again, from what the run remembers now.
  const auto second = held_out();
  put(numbered(28));
  EXPECT_TRUE(std::ranges::includes(held_out(), second));
  EXPECT_EQ(held_out().size(), 7U);
}

TEST_F(HeldOutRunTest, AnotherOrderChangesNothing) {
  const auto before = held_out();
  train_two_steps();
  auto reversed = numbered(12);
  std::ranges::reverse(reversed);
  put(reversed);
  EXPECT_EQ(held_out(), before);
  const CapturedLog log;
  EXPECT_EQ(train_well().steps, kSteps);
  EXPECT_THAT(log.text(), HasSubstr("3 of the 3 held-out samples are there"));
  EXPECT_EQ(held_out(), before);
}

TEST_F(HeldOutRunTest, WithoutALookAtTheDataAnotherOrderIsRefused) {
  config_.data.check_at_start = false;
  auto many = numbered(1200);
  put(many);
  train_two_steps();
  std::ranges::reverse(many);
  put(many);
  EXPECT_THAT(message_of([this] { train_well(); }), HasSubstr("data.check_at_start=false"));
}

}  // namespace
}  // namespace vlmtrain::train
