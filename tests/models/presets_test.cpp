#include <unistd.h>

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "parity/temporary_folder.h"
#include "parity/tiny_preset.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/memory/allocation_trace.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models {
namespace {

using io::get_error_message;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;
using testing::UnorderedElementsAreArray;

/// Presets that include a tokenizer and therefore write complete checkpoints.
class PresetTest : public testing::TestWithParam<std::string> {
 protected:
  const parity::TemporaryFolder folder_;
};

TEST_P(PresetTest, WritesACheckpointThatLoads) {
  const auto out = folder_.path() / "new/model";
  write_preset_checkpoint(GetParam(), {}, 1, out);
  const auto model = build_model(out, at::kCPU, at::kFloat);
  load_weights(*model, out);
  EXPECT_GT(model->parameters().count_elements(), 0);
  EXPECT_GT(load_processor(out, {})->tokenizer().vocab_size(), 0);
}

TEST_P(PresetTest, DependsOnlyOnTheSeed) {
  for (const auto& [name, seed] : {std::pair{"a", 7U}, {"b", 7U}, {"c", 8U}})
    write_preset_checkpoint(GetParam(), {}, seed, folder_.path() / name);
  const auto read_weights = [&](const char* name) {
    return io::read_file(folder_.path() / name / "model.safetensors");
  };
  EXPECT_TRUE(read_weights("a") == read_weights("b"));
  EXPECT_FALSE(read_weights("a") == read_weights("c"));
}

TEST_P(PresetTest, Bf16PresetHasRoundedValues) {
  const auto fp32_folder = folder_.path() / "full", bf16_folder = folder_.path() / "half";
  write_preset_checkpoint(GetParam(), {}, 1, fp32_folder);
  write_preset_checkpoint(GetParam(), {}, 1, bf16_folder, at::kBFloat16);
  const io::SafetensorsFile fp32_tensors(fp32_folder / "model.safetensors"),
      bf16_tensors(bf16_folder / "model.safetensors");
  EXPECT_THAT(bf16_tensors.names(), UnorderedElementsAreArray(fp32_tensors.names()));
  int64_t num_rounded = 0;
  for (const std::string& name : fp32_tensors.names()) {
    const at::Tensor values = fp32_tensors.tensor(name), actual = bf16_tensors.tensor(name);
    if (actual.scalar_type() == at::kBFloat16) ++num_rounded;
    EXPECT_TRUE(at::equal(actual, values.to(actual.scalar_type()))) << name;
  }
  EXPECT_GT(num_rounded, 0);
  EXPECT_THAT(io::read_file(bf16_folder / "config.json"), Not(HasSubstr("\"float32\"")));
  const auto model = build_model(bf16_folder, at::kCPU, at::kFloat);
  load_weights(*model, bf16_folder);
}

TEST_P(PresetTest, RequiresAnEmptyFolder) {
  const auto out = folder_.path() / "model";
  std::filesystem::create_directory(out);
  write_preset_checkpoint(GetParam(), {}, 1, out);
  const auto stored_bytes = io::read_file(out / "model.safetensors");
  EXPECT_THAT(get_error_message([&] { write_preset_checkpoint(GetParam(), {}, 2, out); }, ExitCode::kUsage),
              AllOf(HasSubstr("--out"), HasSubstr(out.string())));
  EXPECT_TRUE(io::read_file(out / "model.safetensors") == stored_bytes);
}

TEST_P(PresetTest, RefusesOtherTokenizers) {
  const auto out = folder_.path() / "model";
  write_preset_checkpoint(GetParam(), {}, 1, out);
  EXPECT_THAT(get_error_message(
                  [&] { write_preset_checkpoint(GetParam(), out / "tokenizer.json", 1, folder_.path() / "other"); },
                  ExitCode::kUsage),
              AllOf(HasSubstr("--tokenizer"), HasSubstr(GetParam())));
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "other"));
}

TEST_P(PresetTest, HoldsOneTensorAtATime) {
  const auto out = folder_.path() / "model";
  int64_t peak_bytes = 0;
  {
    const memory::AllocationTrace trace(at::kCPU);
    write_preset_checkpoint(GetParam(), {}, 1, out);
    int64_t live_bytes = 0;
    for (const auto& event : trace.events()) peak_bytes = std::max(peak_bytes, live_bytes += event.bytes);
  }
  int64_t max_bytes = 0, total_bytes = 0;
  const io::CheckpointTensors weights(out);
  for (const auto& name : weights.names()) {
    max_bytes = std::max(max_bytes, weights.info(name).size_bytes);
    total_bytes += weights.info(name).size_bytes;
  }
  EXPECT_GE(peak_bytes, max_bytes);
  EXPECT_LE(peak_bytes, max_bytes + 100'000) << "RoPE tables are small";
  EXPECT_GT(total_bytes, 2 * max_bytes + 200'000);
}

TEST_P(PresetTest, HasInitialWeightsOfModel) {
  const auto out = folder_.path() / "model";
  write_preset_checkpoint(GetParam(), {}, 5, out);
  const auto model = build_model(out, at::kCPU, at::kFloat);
  initialize_weights(*model, 5);
  const io::CheckpointTensors weights(out);
  for (const auto& parameter : model->parameters().all()) {
    const std::string name = model->get_checkpoint_tensor_name(parameter.name);
    EXPECT_TRUE(at::equal(weights.tensor(name), parameter.tensor)) << name;
  }
}

TEST_P(PresetTest, RemovesFilesOfInterruptedWriters) {
  const auto out = folder_.path() / "model";
  {
    // The folder name contains the id of a process that no longer exists.
    const io::AtomicDirectory unfinished(out);
    const std::string folder_name = unfinished.path().filename().string();
    const std::string process_suffix = fmt::format(".{}.", getpid());
    const size_t position = folder_name.find(process_suffix);
    ASSERT_NE(position, std::string::npos) << folder_name;
    std::filesystem::create_directory(folder_.path() / (folder_name.substr(0, position) + ".999999999." +
                                                        folder_name.substr(position + process_suffix.size())));
  }
  write_preset_checkpoint(GetParam(), {}, 1, out);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1) << "but for the model";
}

INSTANTIATE_TEST_SUITE_P(WithTokenizer, PresetTest,
                         testing::Values("smolvlm-tiny", "smolvlm2-tiny", "llava-tiny", "nanovlm-tiny",
                                         "qwen2.5-vl-tiny", "qwen3-vl-tiny", "qwen3.5-tiny", "internvl3-tiny",
                                         "internvl3.5-tiny", "gemma-3-tiny", "gemma-4-tiny", "prs-med-tiny",
                                         "brain-llava-tiny", "qwen3-tiny", "gemma-3-text-tiny"),
                         [](const auto& instance) { return parity::TinyPreset::make_test_name(instance.param); });

TEST(PresetNames, AreAllTested) {
  EXPECT_THAT(
      list_presets(),
      UnorderedElementsAre(
          "brain-llava-7b", "brain-llava-tiny", "gemma-3-12b", "gemma-3-27b", "gemma-3-4b", "gemma-3-text-tiny",
          "gemma-3-tiny", "gemma-4-12b", "gemma-4-31b", "gemma-4-e2b", "gemma-4-e4b", "gemma-4-tiny", "internvl3-14b",
          "internvl3-1b", "internvl3-2b", "internvl3-38b", "internvl3-8b", "internvl3-tiny", "internvl3.5-14b",
          "internvl3.5-1b", "internvl3.5-2b", "internvl3.5-38b", "internvl3.5-4b", "internvl3.5-8b", "internvl3.5-tiny",
          "llava-1.5-13b", "llava-1.5-7b", "llava-med-7b", "llava-tiny", "medgemma-4b", "nanovlm-222m", "nanovlm-460m",
          "nanovlm-tiny", "prs-med-7b", "prs-med-tiny", "qwen2-vl-2b", "qwen2.5-vl-3b", "qwen2.5-vl-7b",
          "qwen2.5-vl-tiny", "qwen3-vl-2b", "qwen3-vl-32b", "qwen3-vl-4b", "qwen3-vl-8b", "qwen3-vl-tiny",
          "qwen3.5-0.8b", "qwen3.5-2b", "qwen3.5-4b", "qwen3.5-9b", "qwen3.5-27b", "qwen3.5-tiny", "qwen3-0.6b",
          "qwen3-tiny", "smollm2-135m", "smolvlm-2.2b", "smolvlm-256m", "smolvlm-500m", "smolvlm-tiny", "smolvlm2-2.2b",
          "smolvlm2-256m-video", "smolvlm2-500m-video", "smolvlm2-tiny"));
}

TEST(PresetNames, NameTheirTokenizerSource) {
  for (const auto& name : list_presets()) {
    parity::TemporaryFolder folder;
    write_preset_config(name, folder.path());
    EXPECT_EQ(get_tokenizer_source(name).empty(), std::filesystem::exists(folder.path() / "tokenizer.json")) << name;
  }
}

TEST(WritePreset, UnknownNameListsTheKnownNames) {
  const parity::TemporaryFolder folder;
  std::string misspelled_name = list_presets().at(0);
  misspelled_name.back() = '?';
  const auto preset_error = get_error_message(
      [&] { write_preset_checkpoint(misspelled_name, {}, 1, folder.path() / "out"); }, ExitCode::kUsage);
  EXPECT_THAT(preset_error, HasSubstr("--preset " + misspelled_name));
  const auto config_error =
      get_error_message([&] { write_preset_config(misspelled_name, folder.path()); }, ExitCode::kUsage);
  EXPECT_THAT(config_error, HasSubstr("model " + misspelled_name));
  for (const auto& message : {preset_error, config_error}) {
    EXPECT_THAT(message, HasSubstr("did you mean " + list_presets().at(0)));
    for (const auto& name : list_presets()) EXPECT_THAT(message, HasSubstr(name));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace vlmtrain::models
