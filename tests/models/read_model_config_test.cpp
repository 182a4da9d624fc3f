#include "models/checkpoints/read_model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "parity/temporary_folder.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class ReadModelConfigTest : public testing::Test {
 protected:
  std::string error_of(const fs::path& path) const {
    return io::message_of([&] { read_model_config(path); });
  }

  fs::path made(const fs::path& folder) const {
    fs::create_directories(folder_.path() / folder);
    return folder_.path() / folder;
  }

  fs::path written(const fs::path& file) const {
    io::write_file(folder_.path() / file, "{}");
    return folder_.path() / file;
  }

  const parity::TemporaryFolder folder_;
};

TEST_F(ReadModelConfigTest, ReadsAFolderThatHasOne) {
  written("config.json");
  EXPECT_EQ(read_model_config(folder_.path()), nlohmann::json::object());
}

TEST_F(ReadModelConfigTest, ANameOnTheHubIsFetchedByThePerson) {
  EXPECT_THAT(error_of("HuggingFaceTB/SmolVLM-256M-Instruct"),
              HasSubstr("nothing is downloaded: `hf download HuggingFaceTB/SmolVLM-256M-Instruct --local-dir "
                        "SmolVLM-256M-Instruct`"));
  EXPECT_THAT(error_of(folder_.path() / "none"), HasSubstr("there is no such folder; check the path"));
  EXPECT_THAT(error_of("./a/b"), HasSubstr("there is no such folder; check the path"));
  EXPECT_THAT(error_of("~/model"), HasSubstr("the shell replaces ~"));
  EXPECT_THAT(error_of("HuggingFaceTB/SmolVLM.Q4_K_M.gguf"), HasSubstr("a GGUF file"));
  const fs::path here = fs::current_path();
  fs::current_path(folder_.path());
  made("runs");
  EXPECT_THAT(error_of("runs/first"), HasSubstr("there is no such folder; check the path"));
  fs::current_path(here);
}

TEST_F(ReadModelConfigTest, AFileIsNoFolder) {
  EXPECT_THAT(error_of(written("model.gguf")), HasSubstr("a GGUF file holds weights for inference"));
  EXPECT_THAT(error_of(written("model.safetensors")), HasSubstr("give the folder that holds it"));
}

TEST_F(ReadModelConfigTest, OfARunTheNewestCheckpointIsNamed) {
  made("run/checkpoints/step-9");
  const auto newest = made("run/checkpoints/step-10");
  made("run/checkpoints/step-x");
  EXPECT_THAT(error_of(folder_.path() / "run"), HasSubstr("give its newest checkpoint: " + newest.string()));
  EXPECT_THAT(error_of(folder_.path() / "run/checkpoints"), HasSubstr("give one of them: " + newest.string()));
}

TEST_F(ReadModelConfigTest, OtherTrainersFoldersAreNamedAsWhatTheyAre) {
  const auto checkpoint = made("hf/checkpoint-20");
  EXPECT_THAT(error_of(folder_.path() / "hf"), HasSubstr("give one of them: " + checkpoint.string()));
  const auto snapshot = made("models--a--b/snapshots/0123abc");
  EXPECT_THAT(error_of(folder_.path() / "models--a--b"),
              HasSubstr("the Hub's cache; give the folder in it: " + snapshot.string()));
  made("ds/global_step5");
  EXPECT_THAT(error_of(folder_.path() / "ds"), HasSubstr("zero_to_fp32.py"));
  EXPECT_THAT(error_of(made("empty")), HasSubstr("config.json"));
}

}  // namespace
}  // namespace vlmtrain::models
