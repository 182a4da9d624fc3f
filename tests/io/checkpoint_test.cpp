#include "vlmtrain/io/checkpoint.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "io/temporary_folder.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::io {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

class Checkpoint : public TemporaryFolderTest {
 protected:
  // Returns five tensors of 40 bytes, each filled with its number.
  static NamedTensors make_tensors() {
    NamedTensors tensors;
    for (int i = 0; i < 5; ++i) {
      tensors.emplace_back(fmt::format("layer.{}", i), at::full({10}, i, at::kFloat));
    }
    return tensors;
  }

  void expect_tensors() const {
    const CheckpointTensors checkpoint(folder());
    EXPECT_THAT(checkpoint.names(), UnorderedElementsAre("layer.0", "layer.1", "layer.2", "layer.3", "layer.4"));
    for (const auto& [name, tensor] : make_tensors()) {
      EXPECT_TRUE(checkpoint.contains(name));
      EXPECT_TRUE(at::equal(checkpoint.tensor(name), tensor)) << name;
      EXPECT_EQ(checkpoint.info(name).size_bytes, 40);
    }
    EXPECT_FALSE(checkpoint.contains("none"));
    EXPECT_THAT(get_error_message([&] { checkpoint.tensor("none"); }),
                AllOf(HasSubstr("no tensor none"), HasSubstr(folder().string())));
  }

  std::string get_error() const {
    return get_error_message([&] { const CheckpointTensors checkpoint(folder()); });
  }
};

TEST_F(Checkpoint, ALinkToItselfCannotBeRead) {
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"}) {
    fs::create_symlink(name, folder() / name);
    EXPECT_THAT(get_error_message([&] { CheckpointTensors{folder()}; }),
                AllOf(HasSubstr((folder() / name).string()), HasSubstr("cannot be read")));
    EXPECT_THAT(get_error_message([&] { read_checkpoint_tensor_names(folder()); }), HasSubstr("cannot be read"));
    fs::remove(folder() / name);
  }
}

TEST_F(Checkpoint, WritesOneFile) {
  write_checkpoint_tensors(folder(), make_tensors());
  EXPECT_THAT(entries(folder()), ElementsAre("model.safetensors"));
  expect_tensors();
}

TEST_F(Checkpoint, WritesShardsAndTheirIndex) {
  write_checkpoint_tensors(folder(), make_tensors(), 80);
  EXPECT_THAT(entries(folder()), ElementsAre("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                             "model-00003-of-00003.safetensors", "model.safetensors.index.json"));
  expect_tensors();
  EXPECT_EQ(read_json(folder() / "model.safetensors.index.json"), nlohmann::json::parse(R"({
    "metadata": {"total_size": 200},
    "weight_map": {
      "layer.0": "model-00001-of-00003.safetensors", "layer.1": "model-00001-of-00003.safetensors",
      "layer.2": "model-00002-of-00003.safetensors", "layer.3": "model-00002-of-00003.safetensors",
      "layer.4": "model-00003-of-00003.safetensors"}})"));
}

TEST_F(Checkpoint, GivesAnOversizedTensorItsOwnShard) {
  write_checkpoint_tensors(folder(), make_tensors(), 1);
  EXPECT_EQ(entries(folder()).size(), 6);
  expect_tensors();
}

TEST_F(Checkpoint, ChecksFreeSpaceForAllShardsFirst) {
  LazyTensors tensors;
  for (const char* name : {"small", "vast"}) {
    const bool is_huge = name == std::string("vast");
    tensors.push_back({.name = name,
                       .dtype = at::kFloat,
                       .shape = {is_huge ? int64_t{1} << 58 : 4},
                       .materialize = []() -> at::Tensor { throw std::logic_error("a tensor was made"); }});
  }
  const AtomicDirectory model(folder() / "model");
  EXPECT_THAT(get_error_message([&] { write_checkpoint_tensors(model.path(), tensors, 16); }, ExitCode::kFailed),
              AllOf(HasSubstr((folder() / "model").string() + ": cannot be written (No space left on device)"),
                    HasSubstr("1152921504606846992 bytes"), HasSubstr("bytes are free"),
                    testing::Not(HasSubstr("vlmtrain-new"))));
  EXPECT_TRUE(fs::is_empty(model.path()));
}

TEST_F(Checkpoint, RefusesToOverwriteWeights) {
  write_checkpoint_tensors(folder(), make_tensors());
  EXPECT_THAT(get_error_message([&] { write_checkpoint_tensors(folder(), make_tensors(), 80); }, ExitCode::kFailed),
              AllOf(HasSubstr("already contains weights"), HasSubstr("model.safetensors")));
}

TEST_F(Checkpoint, ReportsTheMissingFiles) {
  EXPECT_THAT(get_error(), AllOf(HasSubstr(folder().string()), HasSubstr("neither model.safetensors nor "
                                                                         "model.safetensors.index.json")));
  EXPECT_THAT(get_error_message([&] { const CheckpointTensors checkpoint(folder() / "none"); }),
              HasSubstr("does not exist"));
}

TEST_F(Checkpoint, RefusesPickledWeights) {
  put("pytorch_model.bin", "");
  EXPECT_THAT(get_error(), AllOf(HasSubstr("pytorch_model.bin"), HasSubstr("save_pretrained")));
}

TEST_F(Checkpoint, RefusesAMissingShard) {
  write_checkpoint_tensors(folder(), make_tensors(), 80);
  fs::remove(folder() / "model-00002-of-00003.safetensors");
  EXPECT_THAT(get_error(), AllOf(HasSubstr("model-00002-of-00003.safetensors"), HasSubstr("missing")));
}

TEST_F(Checkpoint, RefusesAWrongIndex) {
  write_checkpoint_tensors(folder(), make_tensors(), 80);
  const auto index = [&](const std::string& map) { put("model.safetensors.index.json", map); };
  index(R"({"weight_map": {"layer.9": "model-00001-of-00003.safetensors"}})");
  EXPECT_THAT(get_error(), AllOf(HasSubstr("layer.9"), HasSubstr("model-00001-of-00003.safetensors")));
  index(R"({"weight_map": {"layer.0": "../model-00001-of-00003.safetensors"}})");
  EXPECT_THAT(get_error(), HasSubstr("not a file name in the same folder"));
  index(R"({"weight_map": {"layer.0": 3}})");
  EXPECT_THAT(get_error(), HasSubstr("not a string"));
  index(R"({"weight_map": []})");
  EXPECT_THAT(get_error(), HasSubstr("weight_map"));
  index("{");
  EXPECT_THAT(get_error(), HasSubstr("line 1, column 2"));
}

}  // namespace
}  // namespace vlmtrain::io
