#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "models/checkpoints/config_checks.h"
#include "parity/temporary_folder.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class ReadModelConfigTest : public testing::Test {
 protected:
  std::string get_error(const fs::path& path) const {
    return io::get_error_message([&] { read_model_config(path); });
  }

  fs::path make_folder(const fs::path& folder) const {
    fs::create_directories(folder_.path() / folder);
    return folder_.path() / folder;
  }

  fs::path write_file(const fs::path& file) const {
    io::write_file(folder_.path() / file, "{}");
    return folder_.path() / file;
  }

  const parity::TemporaryFolder folder_;
};

TEST_F(ReadModelConfigTest, ReadsConfigOfFolder) {
  write_file("config.json");
  EXPECT_EQ(read_model_config(folder_.path()), nlohmann::json::object());
}

TEST_F(ReadModelConfigTest, MissingFolderIsDescribed) {
  EXPECT_THAT(get_error(folder_.path() / "none"), HasSubstr("the folder does not exist; check the path"));
  EXPECT_THAT(get_error("./a/b"), HasSubstr("the folder does not exist; check the path"));
  EXPECT_THAT(get_error("~/model"), HasSubstr("the shell expands ~"));
  EXPECT_THAT(get_error("HuggingFaceTB/SmolVLM.Q4_K_M.gguf"), HasSubstr("a GGUF file"));
  const fs::path working_folder = fs::current_path();
  fs::current_path(folder_.path());
  make_folder("runs");
  EXPECT_THAT(get_error("runs/first"), HasSubstr("the folder does not exist; check the path"));
  fs::current_path(working_folder);
}

TEST_F(ReadModelConfigTest, FileIsRefused) {
  EXPECT_THAT(get_error(write_file("model.gguf")), HasSubstr("a GGUF file contains weights for inference"));
  EXPECT_THAT(get_error(write_file("model.safetensors")), HasSubstr("give the folder that contains it"));
}

TEST_F(ReadModelConfigTest, NewestCheckpointOfARunIsSuggested) {
  make_folder("run/checkpoints/step-9");
  const auto newest_checkpoint = make_folder("run/checkpoints/step-10");
  make_folder("run/checkpoints/step-x");
  EXPECT_THAT(get_error(folder_.path() / "run"),
              HasSubstr("give its newest checkpoint: " + newest_checkpoint.string()));
  EXPECT_THAT(get_error(folder_.path() / "run/checkpoints"),
              HasSubstr("give one of them: " + newest_checkpoint.string()));
}

TEST_F(ReadModelConfigTest, FoldersOfOtherTrainersAreDescribed) {
  const auto checkpoint = make_folder("hf/checkpoint-20");
  EXPECT_THAT(get_error(folder_.path() / "hf"), HasSubstr("give one of them: " + checkpoint.string()));
  const auto snapshot = make_folder("models--a--b/snapshots/0123abc");
  EXPECT_THAT(get_error(folder_.path() / "models--a--b"),
              HasSubstr("a Hub cache folder; give the snapshot in it: " + snapshot.string()));
  make_folder("ds/global_step5");
  EXPECT_THAT(get_error(folder_.path() / "ds"), HasSubstr("zero_to_fp32.py"));
  EXPECT_THAT(get_error(make_folder("empty")), HasSubstr("config.json"));
}

}  // namespace
}  // namespace vlmtrain::models
