#include "train/run_saver.h"

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include <map>
#include <thread>

#include "base/captured_log.h"
#include "planner/user_error.h"
#include "train/small_run.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/unfinished.h"
#include "vlmtrain/memory/fault_injection.h"

namespace vlmtrain::train {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// A run between two steps. While io::remove_unfinished() is held, nothing is written.
class RunSaverTest : public SmallRunTest {
 protected:
  RunSaverTest() { config_.output.keep = 9; }

  void begin() {
    fs::create_directories(run_folder());
    run_.emplace(config_, at::kCPU, alone_);
    run_->state.total_steps = 100;
    step();
  }
  /// All that training changes, in place.
  void step() {
    const at::NoGradGuard no_gradients;
    run_->ledger.mark_used(run_->state.step++);
    auto& optimizer = run_->training->optimizer;
    for (const auto& tensors : {optimizer.masters(), optimizer.state()}) {
      for (const auto& [name, tensor] : tensors) tensor.add_(1);
    }
  }

  std::unique_ptr<RunSaver> saver(AsyncSave async, int64_t room_bytes = 0) {
    config_.output.async_save = async;
    return std::make_unique<RunSaver>(
        config_, *run_, alone_, [this](int64_t step, const fs::path& /*folder*/) { heard_.push_back(step); },
        [room_bytes] { return memory::HostRoom{.bytes = room_bytes, .bound = "a test"}; });
  }
  int64_t needed_bytes() const { return bytes_of_copies(run_->training->optimizer) + bytes_of_writing(*run_->model); }

  fs::path checkpoint() const { return run_folder() / fmt::format("checkpoints/step-{}", run_->state.step); }
  static std::map<std::string, std::string> files_of(const fs::path& checkpoint) {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(checkpoint)) {
      if (entry.is_regular_file()) files.emplace(fs::relative(entry.path(), checkpoint), read_text(entry.path()));
    }
    return files;
  }
  std::string ledger() const { return read_text(run_folder() / "ledger.json"); }

  const RunRanks alone_{{}};
  std::optional<RunSetup> run_;
  std::vector<int64_t> heard_;
};

struct SavedRun {
  std::string name;
  std::function<void(Config&)> configure;
};

class RunSaverOf : public RunSaverTest, public testing::WithParamInterface<SavedRun> {};

TEST_P(RunSaverOf, SavesTheStepAsItWasWhateverTrainingDoesMeanwhile) {
  GetParam().configure(config_);
  begin();
  saver(AsyncSave::kFalse)->save(/*goes_on=*/true);
  EXPECT_THAT(heard_, ElementsAre(1));
  const auto expected = files_of(checkpoint());
  const std::string expected_ledger = ledger();
  ASSERT_GT(expected.size(), 4U);
  fs::remove_all(checkpoint());
  fs::remove(run_folder() / "ledger.json");

  const fs::path saved = checkpoint();
  const auto meanwhile = saver(AsyncSave::kTrue);
  auto nobody_writes = io::remove_unfinished();
  meanwhile->save(/*goes_on=*/true);
  EXPECT_TRUE(meanwhile->is_saved());
  step();
  EXPECT_FALSE(meanwhile->is_saved());
  meanwhile->look();
  EXPECT_THAT(heard_, ElementsAre(1)) << "nothing is whole yet";
  EXPECT_FALSE(fs::exists(saved));
  nobody_writes.unlock();
  while (heard_.size() == 1) meanwhile->look();
  EXPECT_THAT(heard_, ElementsAre(1, 1)) << "not the step that the run has come to";
  EXPECT_EQ(files_of(saved), expected);
  EXPECT_EQ(ledger(), expected_ledger);
}

INSTANTIATE_TEST_SUITE_P(A, RunSaverOf,
                         testing::Values(SavedRun{"RunInFp32", [](Config&) {}},
                                         SavedRun{"RunIn16Bits",
                                                  [](Config& config) {
                                                    config.training.precision = engine::Precision::kFp16;
                                                    config.training.optimizer_states = engine::OptimizerStates::k8Bit;
                                                    config.model.freeze_vision_tower = true;
                                                  }},
                                         SavedRun{"RunSavedInBf16",
                                                  [](Config& config) { config.output.dtype = OutputDtype::kBf16; }},
                                         SavedRun{"RunWithAdapters", [](Config& config) { config.lora.rank = 2; }}),
                         [](const auto& instance) { return instance.param.name; });

TEST_F(RunSaverTest, WritesOneAfterTheOther) {
  config_.output.keep = 1;
  begin();
  const auto meanwhile = saver(AsyncSave::kTrue);
  meanwhile->save(/*goes_on=*/true);
  step();
  meanwhile->save(/*goes_on=*/true);
  EXPECT_THAT(heard_, ElementsAre(1)) << "the first one is whole before the second is begun";
  meanwhile->finish();
  meanwhile->finish();
  EXPECT_THAT(heard_, ElementsAre(1, 2));
  EXPECT_THAT(checkpoints(), ElementsAre("step-2"));
  step();
  meanwhile->save(/*goes_on=*/false);
  EXPECT_THAT(heard_, ElementsAre(1, 2, 3)) << "nobody trains meanwhile";
  EXPECT_GT(meanwhile->seconds(), 0);
}

TEST_F(RunSaverTest, KeepsTheOneBeforeUntilTheNewOneIsWhole) {
  config_.output.keep = 1;
  begin();
  const auto meanwhile = saver(AsyncSave::kTrue);
  meanwhile->save(/*goes_on=*/true);
  meanwhile->finish();
  const fs::path first = checkpoint();
  step();
  auto nobody_writes = io::remove_unfinished();
  meanwhile->save(/*goes_on=*/true);
  EXPECT_TRUE(fs::exists(first));
  EXPECT_EQ(run_->checkpoints.newest(), first);
  nobody_writes.unlock();
  meanwhile->finish();
  EXPECT_THAT(checkpoints(), ElementsAre("step-2"));
}

TEST_F(RunSaverTest, AFailureIsToldAtTheNextStepInTheSameWords) {
  begin();
  std::ofstream(run_folder() / "checkpoints") << "a file";
  const std::string told = planner::message_of([this] { saver(AsyncSave::kFalse)->save(true); }, ExitCode::kFailed);
  EXPECT_THAT(told, HasSubstr("step-1"));

  const auto meanwhile = saver(AsyncSave::kTrue);
  meanwhile->save(/*goes_on=*/true);
  step();
  const auto look_until_it_is_told = [&] {
    for (;;) meanwhile->look();
  };
  EXPECT_EQ(planner::message_of(look_until_it_is_told, ExitCode::kFailed), told);
  EXPECT_NO_THROW(meanwhile->finish()) << "it is told once";

  const CapturedLog log;
  meanwhile->save_before_the_end(run_error("{}", told), [] { return false; });
  EXPECT_THAT(log.text(), HasSubstr("are not saved: the error came while a checkpoint was written"));
  EXPECT_THAT(heard_, IsEmpty());
}

TEST_F(RunSaverTest, AnErrorWaitsForWhatIsBeingWrittenAndSavesWhatIsNewer) {
  begin();
  const auto meanwhile = saver(AsyncSave::kTrue);
  meanwhile->save(/*goes_on=*/true);
  step();
  const CapturedLog log;
  meanwhile->save_before_the_end(run_error("no luck"), [] { return false; });
  EXPECT_THAT(heard_, ElementsAre(1, 2));
  EXPECT_THAT(log.text(), HasSubstr("what was done up to step 2 is saved"));
}

TEST_F(RunSaverTest, TwoErrorsAreBothTold) {
  begin();
  std::ofstream(run_folder() / "checkpoints") << "a file";
  const auto meanwhile = saver(AsyncSave::kTrue);
  meanwhile->save(/*goes_on=*/true);
  step();
  step();
  const CapturedLog log;
  meanwhile->save_before_the_end(run_error("no luck"), [] { return false; });
  EXPECT_THAT(log.text(), AllOf(HasSubstr("while step 1 was saved: cannot write"), HasSubstr("are not saved")));
}

TEST_F(RunSaverTest, GoesOnWhereThereIsRoomForCopies) {
  begin();
  auto nobody_writes = io::remove_unfinished();
  const CapturedLog log;
  const auto meanwhile = saver(AsyncSave::kAuto, needed_bytes());
  meanwhile->save(/*goes_on=*/true);
  EXPECT_THAT(heard_, IsEmpty());
  EXPECT_THAT(log.text(), Not(HasSubstr("steps wait")));
  nobody_writes.unlock();
}

TEST_F(RunSaverTest, WaitsWithoutRoomAndSaysSoOnce) {
  begin();
  const CapturedLog log;
  const auto waiting = saver(AsyncSave::kAuto, needed_bytes() - 1);
  waiting->save(/*goes_on=*/true);
  EXPECT_THAT(heard_, ElementsAre(1));
  step();
  waiting->save(/*goes_on=*/true);
  EXPECT_THAT(heard_, ElementsAre(1, 2));
  EXPECT_THAT(log.text(), AllOf(HasSubstr("checkpoint of step 1: steps wait until it is written"),
                                HasSubstr("are left for them by a test")));
  EXPECT_EQ(log.lines(), 1) << log.text();
}

TEST_F(RunSaverTest, WaitsWhereCopiesGetNoMemory) {
  begin();
  const CapturedLog log;
  memory::FaultInjection faults;
  faults.arm({.failing_allocation = 2});
  saver(AsyncSave::kTrue)->save(/*goes_on=*/true);
  EXPECT_EQ(faults.failures(), 1);
  EXPECT_THAT(heard_, ElementsAre(1));
  EXPECT_THAT(checkpoints(), ElementsAre("step-1"));
  EXPECT_THAT(log.text(), HasSubstr("there is no memory for copies"));
}

TEST_F(RunSaverTest, CopiesTakeWhatIsSaidAndGoAsTheyAreWritten) {
  begin();
  memory::FaultInjection count;
  const RunSetup& run = *run_;
  const CheckpointContent content = content_of(run.state, *run.model, run.training->optimizer, run.ledger, *run.base,
                                               /*dtype=*/{}, ChangingValues::kCopied);
  EXPECT_EQ(count.live_bytes(), bytes_of_copies(run.training->optimizer));
  // fp32 weights are their own masters: of three values of each one is a weight.
  content.model.write(folder(), 1'000'000'000);
  EXPECT_LT(count.live_bytes(), 0.7 * static_cast<double>(bytes_of_copies(run.training->optimizer)));
  io::write_safetensors(folder() / "optimizer.safetensors", content.optimizer);
  EXPECT_EQ(count.live_bytes(), 0);
}

TEST(WritingGateTest, IsLeftInAnotherThreadAndThenClosed) {
  WritingGate gate;
  {
    auto pass = gate.pass();
    std::jthread([moved = std::move(pass)] {});
  }
  auto pass = std::make_unique<WritingGate::Pass>(gate.pass());
  gate.close(std::chrono::seconds(0));
  std::atomic<bool> is_left = false;
  const std::jthread closes([&] {
    gate.close(std::chrono::hours(1));
    EXPECT_TRUE(is_left);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  is_left = true;
  pass.reset();
}

}  // namespace
}  // namespace vlmtrain::train
