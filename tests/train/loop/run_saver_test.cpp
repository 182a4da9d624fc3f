#include "train/loop/run_saver.h"

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <limits>
#include <map>
#include <thread>

#include "base/captured_log.h"
#include "planner/user_error.h"
#include "train/small_run.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/memory/allocation_tracking.h"

namespace vlmtrain::train {

namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// A run between two steps. Nothing is written while io::lock_and_remove_temp_files() is held.
class RunSaverTest : public SmallRunTest {
 protected:
  RunSaverTest() { config_.output.save_total_limit = 9; }

  void start_run() {
    fs::create_directories(run_folder());
    run_.emplace(config_, at::kCPU, single_rank_);
    run_->state.total_steps = 100;
    step();
  }
  /// Changes all trained values in place.
  void step() {
    const at::NoGradGuard no_gradients;
    run_->ledger.mark_used(run_->state.step++);
    auto& optimizer = run_->training->optimizer;
    for (const auto& tensors : {optimizer.master_weights(), optimizer.state()}) {
      for (const auto& [name, tensor] : tensors) tensor.values.add_(1);
    }
  }

  std::unique_ptr<RunSaver> make_saver(AsyncSaveMode mode, int64_t budget_bytes = 0) {
    config_.output.async_save = mode;
    return std::make_unique<RunSaver>(
        config_, *run_, single_rank_, [this](int64_t step, const fs::path& /*folder*/) { recorded_.push_back(step); },
        [budget_bytes] { return memory::AvailableHostMemory{.bytes = budget_bytes, .limit_source = "a test"}; });
  }
  int64_t compute_required_bytes() const {
    return compute_host_copy_bytes(run_->training->optimizer) + compute_write_buffer_bytes(*run_->model);
  }

  fs::path checkpoint() const { return run_folder() / fmt::format("checkpoints/step-{}", run_->state.step); }
  static std::map<std::string, std::string> read_files(const fs::path& checkpoint) {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(checkpoint)) {
      if (entry.is_regular_file()) files.emplace(fs::relative(entry.path(), checkpoint), read_text(entry.path()));
    }
    return files;
  }
  std::string read_ledger() const { return read_text(run_folder() / "ledger.json"); }

  const RankGroup single_rank_{{}};
  std::optional<RunSetup> run_;
  std::vector<int64_t> recorded_;
};

struct SavedRun {
  std::string name;
  std::function<void(Config&)> configure;
};

class RunSaverConfigTest : public RunSaverTest, public testing::WithParamInterface<SavedRun> {};

TEST_P(RunSaverConfigTest, SavesASnapshotOfTheStep) {
  GetParam().configure(config_);
  start_run();
  make_saver(AsyncSaveMode::kNever)->save(/*goes_on=*/true);
  EXPECT_THAT(recorded_, ElementsAre(1));
  const auto expected = read_files(checkpoint());
  const std::string expected_ledger = read_ledger();
  ASSERT_GT(expected.size(), 4U);
  fs::remove_all(checkpoint());
  fs::remove(run_folder() / "ledger.json");

  const fs::path saved = checkpoint();
  const auto async_saver = make_saver(AsyncSaveMode::kAlways);
  auto write_block = io::lock_and_remove_temp_files();
  async_saver->save(/*goes_on=*/true);
  EXPECT_TRUE(async_saver->is_current_step_saved());
  step();
  EXPECT_FALSE(async_saver->is_current_step_saved());
  async_saver->poll();
  EXPECT_THAT(recorded_, ElementsAre(1)) << "nothing is whole yet";
  EXPECT_FALSE(fs::exists(saved));
  write_block.unlock();
  while (recorded_.size() == 1) async_saver->poll();
  EXPECT_THAT(recorded_, ElementsAre(1, 1)) << "not the step that the run has come to";
  EXPECT_EQ(read_files(saved), expected);
  EXPECT_EQ(read_ledger(), expected_ledger);
}

INSTANTIATE_TEST_SUITE_P(A, RunSaverConfigTest,
                         testing::Values(SavedRun{"RunInFp32", [](Config&) {}},
                                         SavedRun{"RunIn16Bits",
                                                  [](Config& config) {
                                                    config.training.precision = engine::Precision::kFp16;
                                                    config.training.optimizer.state_dtype =
                                                        engine::OptimizerStateDtype::k8Bit;
                                                    config.model.freeze_vision_tower = true;
                                                  }},
                                         SavedRun{"RunSavedInBf16",
                                                  [](Config& config) { config.output.dtype = OutputDtype::kBf16; }},
                                         SavedRun{"RunWithAdapters", [](Config& config) { config.lora.rank = 2; }}),
                         [](const auto& instance) { return instance.param.name; });

TEST_F(RunSaverTest, WritesOneCheckpointAtATime) {
  config_.output.save_total_limit = 1;
  start_run();
  const auto async_saver = make_saver(AsyncSaveMode::kAlways);
  async_saver->save(/*goes_on=*/true);
  step();
  async_saver->save(/*goes_on=*/true);
  EXPECT_THAT(recorded_, ElementsAre(1)) << "the first one is whole before the second is begun";
  async_saver->finish();
  async_saver->finish();
  EXPECT_THAT(recorded_, ElementsAre(1, 2));
  EXPECT_THAT(checkpoints(), ElementsAre("step-2"));
  step();
  async_saver->save(/*goes_on=*/false);
  EXPECT_THAT(recorded_, ElementsAre(1, 2, 3)) << "nobody trains meanwhile";
  EXPECT_GT(async_saver->save_seconds(), 0);
}

TEST_F(RunSaverTest, KeepsThePreviousCheckpointUntilCommit) {
  config_.output.save_total_limit = 1;
  start_run();
  const auto async_saver = make_saver(AsyncSaveMode::kAlways);
  async_saver->save(/*goes_on=*/true);
  async_saver->finish();
  const fs::path first = checkpoint();
  step();
  auto write_block = io::lock_and_remove_temp_files();
  async_saver->save(/*goes_on=*/true);
  EXPECT_TRUE(fs::exists(first));
  EXPECT_EQ(run_->checkpoints.find_newest(), first);
  write_block.unlock();
  async_saver->finish();
  EXPECT_THAT(checkpoints(), ElementsAre("step-2"));
}

TEST_F(RunSaverTest, ReportsAFailureAtTheNextStep) {
  start_run();
  std::ofstream(run_folder() / "checkpoints") << "a file";
  const std::string message =
      planner::get_usage_error([this] { make_saver(AsyncSaveMode::kNever)->save(true); }, ExitCode::kFailed);
  EXPECT_THAT(message, HasSubstr("step-1"));

  const auto async_saver = make_saver(AsyncSaveMode::kAlways);
  async_saver->save(/*goes_on=*/true);
  step();
  const auto poll_until_error = [&] {
    for (;;) async_saver->poll();
  };
  EXPECT_EQ(planner::get_usage_error(poll_until_error, ExitCode::kFailed), message);
  EXPECT_NO_THROW(async_saver->finish()) << "it is told once";

  const CapturedLog log;
  async_saver->emergency_save(run_error("{}", message), [] { return false; });
  EXPECT_THAT(log.text(), HasSubstr("are not saved: the error occurred while a checkpoint was written"));
  EXPECT_THAT(recorded_, IsEmpty());
}

TEST_F(RunSaverTest, EmergencySaveWaitsForTheCurrentOne) {
  start_run();
  const auto async_saver = make_saver(AsyncSaveMode::kAlways);
  async_saver->save(/*goes_on=*/true);
  step();
  const CapturedLog log;
  async_saver->emergency_save(run_error("no luck"), [] { return false; });
  EXPECT_THAT(recorded_, ElementsAre(1, 2));
  EXPECT_THAT(log.text(), HasSubstr("step 2 is saved ("));
}

TEST_F(RunSaverTest, ReportsBothErrors) {
  start_run();
  std::ofstream(run_folder() / "checkpoints") << "a file";
  const auto async_saver = make_saver(AsyncSaveMode::kAlways);
  async_saver->save(/*goes_on=*/true);
  step();
  step();
  const CapturedLog log;
  async_saver->emergency_save(run_error("no luck"), [] { return false; });
  EXPECT_THAT(log.text(),
              AllOf(HasSubstr("saving step 1 failed: "), HasSubstr("cannot be written"), HasSubstr("are not saved")));
}

TEST_F(RunSaverTest, SavesAsyncIfCopiesFit) {
  start_run();
  auto write_block = io::lock_and_remove_temp_files();
  const CapturedLog log;
  const auto async_saver = make_saver(AsyncSaveMode::kAuto, compute_required_bytes());
  async_saver->save(/*goes_on=*/true);
  EXPECT_THAT(recorded_, IsEmpty());
  EXPECT_THAT(log.text(), Not(HasSubstr("training waits")));
  write_block.unlock();
}

TEST_F(RunSaverTest, SavesSyncIfCopiesDoNotFit) {
  start_run();
  const CapturedLog log;
  const auto sync_saver = make_saver(AsyncSaveMode::kAuto, compute_required_bytes() - 1);
  sync_saver->save(/*goes_on=*/true);
  EXPECT_THAT(recorded_, ElementsAre(1));
  step();
  sync_saver->save(/*goes_on=*/true);
  EXPECT_THAT(recorded_, ElementsAre(1, 2));
  EXPECT_THAT(log.text(), AllOf(HasSubstr("checkpoint of step 1: training waits until it is written"),
                                HasSubstr("are available within a test")));
  EXPECT_EQ(log.lines(), 1) << log.text();
}

TEST_F(RunSaverTest, SavesSyncIfCopyingRunsOutOfMemory) {
  start_run();
  const CapturedLog log;
  memory::AllocationFaultInjector faults;
  faults.arm({.failing_allocation_index = 2});
  make_saver(AsyncSaveMode::kAlways)->save(/*goes_on=*/true);
  EXPECT_EQ(faults.num_failed_allocations(), 1);
  EXPECT_THAT(recorded_, ElementsAre(1));
  EXPECT_THAT(checkpoints(), ElementsAre("step-1"));
  EXPECT_THAT(log.text(), HasSubstr("out of memory for copies"));
}

TEST_F(RunSaverTest, CopiesTakeTheComputedBytes) {
  start_run();
  memory::AllocationFaultInjector count;
  const RunSetup& run = *run_;
  const CheckpointContent content =
      make_checkpoint_content(run.state, *run.model, run.training->optimizer, run.ledger, *run.base,
                              /*dtype=*/{}, ParameterValueStorage::kCopied);
  EXPECT_EQ(count.live_bytes(), compute_host_copy_bytes(run.training->optimizer));
  // fp32 weights are their own masters: one of three values per parameter is a weight.
  content.model.write(folder(), 1'000'000'000);
  EXPECT_LT(count.live_bytes(), 0.7 * static_cast<double>(compute_host_copy_bytes(run.training->optimizer)));
  io::write_safetensors(folder() / "optimizer.safetensors", content.optimizer);
  EXPECT_EQ(count.live_bytes(), 0);
}

TEST_F(RunSaverTest, StateInHostMemoryIsWrittenInPlaceBeforeItChanges) {
  start_run();
  run_->training.reset();
  run_->training =
      std::make_unique<engine::TrainingState>(*run_->model, engine::OptimizerSettings{}, 1, engine::Shard{},
                                              engine::HostMemorySettings{.offload = engine::Offload::kOptimizer});
  const int64_t state_bytes = run_->training->optimizer.host_bytes();
  ASSERT_GT(state_bytes, 0);
  make_saver(AsyncSaveMode::kNever)->save(/*goes_on=*/true);
  const auto expected = read_files(checkpoint());
  const fs::path saved = checkpoint();
  fs::remove_all(saved);

  const auto async_saver = make_saver(AsyncSaveMode::kAlways);
  std::promise<void> has_begun;
  std::atomic<bool> is_blocked = true;
  const std::jthread writes_are_blocked([&] {
    const auto write_block = io::lock_and_remove_temp_files();
    has_begun.set_value();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    is_blocked = false;
  });
  has_begun.get_future().wait();
  async_saver->save(/*goes_on=*/true);
  async_saver->wait_until_state_may_change();
  EXPECT_FALSE(is_blocked);
  step();
  async_saver->finish();
  EXPECT_EQ(read_files(saved), expected);
}

TEST(CheckpointLockTest, IsReleasedByAnotherThread) {
  CheckpointLock lock;
  {
    auto guard = lock.acquire();
    std::jthread([moved_guard = std::move(guard)] {});
  }
  auto guard = std::make_unique<CheckpointLock::Guard>(lock.acquire());
  lock.close(std::chrono::seconds(0));
  std::atomic<bool> is_released = false;
  const std::jthread closer([&] {
    lock.close(std::chrono::hours(1));
    EXPECT_TRUE(is_released);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  is_released = true;
  guard.reset();
}

constexpr int64_t kGigabyte = 1'000'000'000;

AsyncSaveBudgetInputs make_inputs(int64_t available_gb, int64_t process_gb, int64_t planned_gb,
                                  int64_t unused_limit_gb) {
  AsyncSaveBudgetInputs inputs;
  inputs.available.bytes = available_gb * kGigabyte;
  inputs.available.limit_source = "free memory of the machine";
  inputs.process_bytes = process_gb * kGigabyte;
  inputs.planned_bytes = planned_gb * kGigabyte;
  inputs.unused_limit_bytes = unused_limit_gb * kGigabyte;
  return inputs;
}

TEST(AsyncSaveBudgetTest, IsFreeMemoryLessMarginAndGrowth) {
  const auto budget = compute_async_save_budget(make_inputs(20, 4, 7, 100), /*margin_percent=*/5);
  EXPECT_EQ(budget.bytes, (20 - 4 - 1 - 3) * kGigabyte);
  EXPECT_EQ(budget.limit_source, "free memory of the machine");
}

TEST(AsyncSaveBudgetTest, IsLimitedByThePlan) {
  const auto budget = compute_async_save_budget(make_inputs(20, 4, 7, 2), 5);
  EXPECT_EQ(budget.bytes, 2 * kGigabyte);
  EXPECT_THAT(budget.limit_source, testing::HasSubstr("plan.json"));
}

TEST(AsyncSaveBudgetTest, CountsTheGrowthOfAllRanks) {
  auto inputs = make_inputs(20, 4, 7, 100);
  inputs.ranks = 3;
  EXPECT_EQ(compute_async_save_budget(inputs, 5).bytes, (20 - 4 - 1 - 9) * kGigabyte);
}

TEST(AsyncSaveBudgetTest, IsZeroWithoutFreeMemory) {
  EXPECT_EQ(compute_async_save_budget(make_inputs(5, 4, 7, 100), 5).bytes, 0);
}

TEST(AsyncSaveBudgetTest, OnAGpuOnlyHostMemoryCounts) {
  const auto budget = compute_async_save_budget(nullptr, planner::MemoryMode::kBalanced, 1);
  EXPECT_GT(budget.bytes, 0);
  EXPECT_LT(budget.bytes, memory::get_machine_memory_bytes());
}

}  // namespace

}  // namespace vlmtrain::train
