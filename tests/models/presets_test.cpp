#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "parity/temporary_folder.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::models {
namespace {

using io::message_of;
using testing::AllOf;
using testing::HasSubstr;

class Preset : public testing::TestWithParam<std::string> {
 protected:
  const parity::TemporaryFolder folder_;
};

TEST_P(Preset, WritesACheckpointThatLoads) {
  const auto out = folder_.path() / "new/model";
  write_preset(GetParam(), {}, 1, out);
  const auto model = build_model(out, at::kCPU, at::kFloat);
  load_weights(*model, out);
  EXPECT_GT(model->parameters().total_elements(), 0);
  EXPECT_GT(load_processor(out, {})->tokenizer().vocab_size(), 0);
}

TEST_P(Preset, IsAFunctionOfTheSeed) {
  for (const auto& [name, seed] : {std::pair{"a", 7U}, {"b", 7U}, {"c", 8U}})
    write_preset(GetParam(), {}, seed, folder_.path() / name);
  const auto weights = [&](const char* name) { return io::read_file(folder_.path() / name / "model.safetensors"); };
  EXPECT_TRUE(weights("a") == weights("b"));
  EXPECT_FALSE(weights("a") == weights("c"));
}

TEST_P(Preset, FillsAnEmptyFolderButNoOther) {
  const auto out = folder_.path() / "model";
  std::filesystem::create_directory(out);
  write_preset(GetParam(), {}, 1, out);
  const auto before = io::read_file(out / "model.safetensors");
  EXPECT_THAT(message_of([&] { write_preset(GetParam(), {}, 2, out); }, ExitCode::kUsage),
              AllOf(HasSubstr("--out"), HasSubstr(out.string())));
  EXPECT_TRUE(io::read_file(out / "model.safetensors") == before);
}

INSTANTIATE_TEST_SUITE_P(All, Preset, testing::ValuesIn(preset_names()), [](const auto& instance) {
  std::string name = instance.param;
  std::erase_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
  return name;
});

TEST(WritePreset, UnknownNameListsTheKnownOnes) {
  const parity::TemporaryFolder folder;
  std::string nearly = preset_names().at(0);
  nearly.back() = '?';
  const auto message = message_of([&] { write_preset(nearly, {}, 1, folder.path() / "out"); }, ExitCode::kUsage);
  EXPECT_THAT(message, AllOf(HasSubstr(nearly), HasSubstr("did you mean " + preset_names().at(0))));
  for (const auto& name : preset_names()) EXPECT_THAT(message, HasSubstr(name));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "out"));
}

}  // namespace
}  // namespace vlmtrain::models
