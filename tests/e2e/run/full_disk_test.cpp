#include <sched.h>
#include <sys/mount.h>

#include <tuple>

#include "e2e/command.h"

namespace vlmtrain::e2e {

namespace {

using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

class FullDiskTest : public CommandTest {
 protected:
  /// Writes nothing but checkpoints, so that the disk's size decides which file fails.
  std::vector<std::string> settings_{"training.max_steps=6", "output.save_steps=1",      "output.save_total_limit=1",
                                     "output.report=false",  "output.tensorboard=false", "output.sample_predictions=0"};

  void TearDown() override {
    if (mounted_) umount(disk().c_str());
    CommandTest::TearDown();
  }

  std::filesystem::path disk() const { return folder() / "disk"; }

  /// Mounts a disk of `kilobytes` in a mount namespace of this process; returns false where the
  /// system forbids it.
  bool mount_disk(int kilobytes) {
    std::filesystem::create_directory(disk());
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
    mounted_ = mount("tmpfs", disk().c_str(), "tmpfs", 0, size_option(kilobytes).c_str()) == 0;
    return mounted_;
  }
  bool resize_disk(int kilobytes) const {
    return mount("tmpfs", disk().c_str(), "tmpfs", MS_REMOUNT, size_option(kilobytes).c_str()) == 0;
  }

  Result train_in_folder(const std::string& dir, rlim_t file_bytes = 0) const {
    auto settings = settings_;
    settings.push_back("output.dir=" + dir);
    return run(train_arguments(settings), file_bytes);
  }

  /// Resumes the run and expects the result of one that never met a full disk.
  void expect_whole(const std::string& dir) const {
    const Result repeated = train_in_folder(dir);
    ASSERT_EQ(repeated.exit_code, 0) << repeated.err;
    EXPECT_THAT(repeated.err, HasSubstr("resuming after step"));
    ASSERT_EQ(train_in_folder("whole").exit_code, 0);
    EXPECT_EQ(read_text(folder() / dir / "checkpoints/step-6/model.safetensors"),
              read_text(folder() / "whole/checkpoints/step-6/model.safetensors"));
    EXPECT_EQ(step_lines(dir + "/metrics.jsonl").size(), 6U);
    EXPECT_EQ(entries(folder() / dir / "checkpoints"), entries(folder() / "whole/checkpoints"));
  }

 private:
  static std::string size_option(int kilobytes) { return "size=" + std::to_string(kilobytes) + "k"; }
  bool mounted_ = false;
};

/// The sizes leave room for one checkpoint (about 800 kB) and let the second fail at different
/// files.
class FullDiskWhileSavingTest : public FullDiskTest,
                                public testing::WithParamInterface<std::tuple<int, const char*>> {};

TEST_P(FullDiskWhileSavingTest, KeepsThePreviousCheckpoint) {
  const auto& [kilobytes, async] = GetParam();
  if (!mount_disk(kilobytes)) GTEST_SKIP() << "no permission to mount a tmpfs";
  settings_.push_back(std::string("output.async_save=") + async);
  const Result full = train_in_folder("disk/run");
  EXPECT_EQ(full.exit_code, 5) << full.err;
  EXPECT_THAT(full.err, Not(HasSubstr("internal error")));
  EXPECT_THAT(full.err, HasSubstr("disk/run/checkpoints/"));
  EXPECT_THAT(full.err, HasSubstr("cannot be written (No space left on device)"));
  EXPECT_THAT(full.err, HasSubstr("bytes are free"));

  const auto checkpoints = folder() / "disk/run/checkpoints";
  EXPECT_THAT(entries(checkpoints), ElementsAre("step-1")) << "the failed one's files are removed";
  EXPECT_EQ(entries(checkpoints / "step-1").size(), entries(checkpoint()).size() + 1);
  EXPECT_EQ(json_file("disk/run/ledger.json")["samples"], kRecords);

  ASSERT_TRUE(resize_disk(8192));
  expect_whole("disk/run");
}

INSTANTIATE_TEST_SUITE_P(Sizes, FullDiskWhileSavingTest,
                         testing::Combine(testing::Values(820, 1000, 1200), testing::Values("false", "true")));

TEST_F(FullDiskTest, ReportsAFullDisk) {
  if (!mount_disk(4)) GTEST_SKIP() << "no permission to mount a tmpfs";
  const Result full = train_in_folder("disk/run");
  EXPECT_EQ(full.exit_code, 5) << full.err;
  EXPECT_THAT(full.err, HasSubstr("disk/run"));
  EXPECT_THAT(full.err, HasSubstr("No space left on device"));
  EXPECT_THAT(full.err, Not(HasSubstr("internal error")));
}

TEST_F(FullDiskTest, ReportsAFileSizeLimit) {
  ASSERT_EQ(train_in_folder("run").exit_code, 0);
  std::filesystem::remove_all(folder() / "run");
  // Room for the weights (240 kB), but not for the optimizer's state (twice that).
  const Result result = train_in_folder("run", 300'000);
  EXPECT_EQ(result.signal, 0);
  EXPECT_EQ(result.exit_code, 5) << result.err;
  EXPECT_THAT(result.err, HasSubstr("optimizer.safetensors: cannot be written (File too large), because it needs"));
  EXPECT_THAT(result.err, HasSubstr("ulimit -f"));
  EXPECT_TRUE(entries(folder() / "run/checkpoints").empty());
}

TEST_F(FullDiskTest, InitChecksFreeSpaceFirst) {
  if (!mount_disk(9'000)) GTEST_SKIP() << "no permission to mount a tmpfs";
  const auto tokenizer = std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "configs/models/nanovlm-tiny/tokenizer.json";
  const Result full = run({"init", "--preset", "nanovlm-222m", "--out", "disk/new", "--tokenizer", tokenizer.string()});
  EXPECT_EQ(full.exit_code, 5) << full.err;
  EXPECT_THAT(full.err, HasSubstr("disk/new: cannot be written (No space left on device), because it needs 8"));
  EXPECT_THAT(full.err, HasSubstr("bytes are free,"));
  EXPECT_TRUE(entries(disk()).empty());
}

}  // namespace

}  // namespace vlmtrain::e2e
