#include "vlmtrain/models/adapter.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "io/temporary_folder.h"
#include "models/checkpoint_copy.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/memory/allocation_trace.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models {
namespace {

using io::get_error_message;
using testing::AllOf;
using testing::HasSubstr;

using Tensors = std::map<std::string, at::Tensor>;

class AdapterTest : public testing::Test {
 protected:
  std::unique_ptr<VisionLanguageModel> model(const nn::LoraSettings& lora) const {
    auto result = build_model(copy_.path(), at::kCPU, at::kFloat, lora);
    load_weights(*result, copy_.path());
    return result;
  }

  static Tensors collect_parameters(const VisionLanguageModel& model) {
    Tensors result;
    for (const auto& parameter : model.parameters().all()) result.emplace(parameter.name, parameter.tensor.detach());
    return result;
  }

  std::string get_build_error(const nn::LoraSettings& lora) const {
    return get_error_message([&] { build_model(copy_.path(), at::kCPU, at::kFloat, lora); }, ExitCode::kUsage);
  }

  /// Saves a new adapter of the checkpoint and returns its folder.
  std::filesystem::path save_new_adapter(const nn::LoraSettings& lora) const {
    const auto adapted = model(lora);
    initialize_adapter(*adapted, 0);
    const auto folder = out_.path() / "adapter";
    std::filesystem::create_directories(folder);
    save_adapter(*adapted, copy_.path(), folder);
    return folder;
  }

  const CheckpointCopy copy_{"mixed_batch"};
  const parity::TemporaryFolder out_;
};

TEST_F(AdapterTest, InitializesLikePeft) {
  const auto adapted = model({.rank = 4});
  initialize_adapter(*adapted, /*seed=*/1);
  int64_t count = 0;
  for (const auto& parameter : adapted->parameters().all()) {
    if (parameter.name.ends_with("lora_A.weight")) {
      const double bound = 1 / std::sqrt(static_cast<double>(parameter.tensor.size(1)));
      const double max_value = parameter.tensor.abs().max().item<double>();
      EXPECT_LE(max_value, bound) << parameter.name;
      EXPECT_GT(max_value, 0.9 * bound) << parameter.name;
      EXPECT_NEAR(parameter.tensor.std().item<double>(), bound / std::sqrt(3.0), 0.15 * bound) << parameter.name;
      ++count;
    } else if (parameter.name.ends_with("lora_B.weight")) {
      EXPECT_EQ(parameter.tensor.abs().max().item<double>(), 0) << parameter.name;
    }
  }
  EXPECT_EQ(count, 2 * 7 + 2 * 6 + 1);  // of two blocks in each tower, and the projector
}

TEST_F(AdapterTest, InitializationDependsOnSeedAndNameOnly) {
  const auto all_targets = model({.rank = 4});
  const auto one_target = model({.rank = 4, .target_modules = {"q_proj"}});
  initialize_adapter(*all_targets, 1);
  initialize_adapter(*one_target, 1);
  const Tensors expected = collect_parameters(*all_targets);
  for (const auto& [name, tensor] : collect_parameters(*one_target))
    EXPECT_TRUE(at::equal(tensor, expected.at(name))) << name;
  initialize_adapter(*one_target, 2);
  const std::string first = "model.text_model.layers.0.self_attn.q_proj.lora_A.weight";
  EXPECT_FALSE(at::equal(collect_parameters(*one_target).at(first), expected.at(first)));
}

TEST_F(AdapterTest, DoraMagnitudesStartAsRowNorms) {
  const auto adapted = model({.rank = 4, .use_dora = true});
  initialize_adapter(*adapted, 1);
  const Tensors parameters = collect_parameters(*adapted);
  const std::string path = "model.vision_model.encoder.layers.0.mlp.fc1.";
  EXPECT_TRUE(
      at::allclose(parameters.at(path + "lora_magnitude_vector"), parameters.at(path + "weight").norm(2, {1}), 1e-6));
}

TEST_F(AdapterTest, FreezingLeavesTheBaseFrozen) {
  const auto adapted = model({.rank = 4});
  EXPECT_TRUE(freeze_parts(*adapted, {.vision_tower = true}));
  for (const auto& parameter : adapted->parameters().all()) {
    const bool is_trainable = parameter.is_adapter && parameter.component != nn::Component::kVisionTower;
    EXPECT_EQ(parameter.tensor.requires_grad(), is_trainable) << parameter.name;
  }
  EXPECT_FALSE(freeze_parts(*adapted, {true, true, true}));
}

TEST_F(AdapterTest, CheckpointHoldsBaseOnly) {
  const auto adapted = model({.rank = 4});
  const auto folder = out_.path() / "whole";
  std::filesystem::create_directories(folder);
  save_checkpoint(*adapted, copy_.path(), folder, io::kDefaultMaxShardBytes);
  EXPECT_EQ(io::CheckpointTensors(folder).names().size(), io::CheckpointTensors(copy_.path()).names().size());
}

TEST_F(AdapterTest, UnmatchedTargetsAreNamedWithSuggestions) {
  EXPECT_THAT(get_build_error({.target_modules = {"v_proj", "v_prj"}}),
              AllOf(HasSubstr("v_prj (did you mean v_proj?)"), HasSubstr("fc1"), HasSubstr(".layers.")));
  EXPECT_THAT(get_build_error({.target_modules = {".*vision.*gate_proj"}}), HasSubstr(".*vision.*gate_proj"));
  EXPECT_THAT(get_build_error({.target_modules = {"lm_head"}}), HasSubstr("no Linear"));
  EXPECT_THAT(get_build_error({.excluded_components = {nn::Component::kVisionTower, nn::Component::kProjector,
                                                       nn::Component::kLanguageModel}}),
              HasSubstr("outside the frozen parts"));
}

TEST_F(AdapterTest, ListsEveryDifferenceAtOnce) {
  const auto folder = save_new_adapter({.rank = 4, .target_modules = {"q_proj"}});
  const auto file = folder / "adapter_model.safetensors";
  io::NamedTensors edited_tensors;
  {
    const io::SafetensorsFile tensors(file);
    for (const auto& name : tensors.names()) edited_tensors.emplace_back(name, tensors.tensor(name).clone());
  }
  const std::string removed_name = "base_model.model.model.text_model.layers.0.self_attn.q_proj.lora_B.weight";
  std::erase_if(edited_tensors, [&](const auto& tensor) { return tensor.first == removed_name; });
  edited_tensors.emplace_back("base_model.model.lm_head.weight", at::zeros({2, 2}));
  io::write_safetensors(file, edited_tensors);
  const auto adapted = model(read_adapter_settings(folder));
  EXPECT_THAT(get_error_message([&] { load_adapter(*adapted, folder); }),
              AllOf(HasSubstr(folder.string()), HasSubstr("2 differences"), HasSubstr("missing: " + removed_name),
                    HasSubstr("unexpected: base_model.model.lm_head.weight")));
}

TEST_F(AdapterTest, SettingsRoundTrip) {
  const auto folder =
      save_new_adapter({.rank = 3, .alpha = 4.5, .dropout = 0.25, .use_rslora = true, .target_modules = {"fc1"}});
  const auto settings = read_adapter_settings(folder);
  EXPECT_EQ(settings.rank, 3);
  EXPECT_EQ(settings.alpha, 4.5);
  EXPECT_EQ(settings.dropout, 0.25);
  EXPECT_TRUE(settings.use_rslora);
  EXPECT_FALSE(settings.use_dora);
  EXPECT_EQ(settings.adapter, folder);
  EXPECT_THAT(settings.target_modules, testing::UnorderedElementsAre("model.vision_model.encoder.layers.0.mlp.fc1",
                                                                     "model.vision_model.encoder.layers.1.mlp.fc1"));
  EXPECT_EQ(find_adapter_base(folder), copy_.path());
  EXPECT_EQ(load_model(folder, at::kCPU, at::kFloat)->parameters().lora()->dropout, 0);
}

TEST_F(AdapterTest, InvalidSettingsAreNamed) {
  const auto folder = save_new_adapter({.rank = 4});
  const auto file = folder / "adapter_config.json";
  const auto config = io::read_json(file);
  const std::vector<std::pair<const char*, nlohmann::json>> invalid_entries{
      {"lora_alpha", 1e308}, {"lora_alpha", 0},    {"lora_alpha", -5}, {"r", 0}, {"r", -1},
      {"r", INT64_MAX},      {"lora_dropout", -1}, {"lora_dropout", 1}};
  for (const auto& [key, value] : invalid_entries) {
    SCOPED_TRACE(fmt::format("{} = {}", key, value.dump()));
    auto edited = config;
    edited[key] = value;
    io::write_file(file, edited.dump());
    const auto message = get_error_message([&] { merge_adapter(folder, out_.path() / "merged"); });
    EXPECT_THAT(message, AllOf(HasSubstr(file.string()), HasSubstr(fmt::format("{} is", key))));
    EXPECT_FALSE(std::filesystem::exists(out_.path() / "merged"));
  }
}

TEST_F(AdapterTest, MergeHoldsOneTensorAtATime) {
  const auto folder = save_new_adapter({.rank = 4});
  int64_t peak_bytes = 0;
  {
    const memory::AllocationTrace trace(at::kCPU);
    merge_adapter(folder, out_.path() / "merged");
    int64_t live_bytes = 0;
    for (const auto& event : trace.events()) peak_bytes = std::max(peak_bytes, live_bytes += event.bytes);
  }
  int64_t max_bytes = 0, total_bytes = 0;
  const io::CheckpointTensors merged(out_.path() / "merged");
  for (const auto& name : merged.names()) {
    max_bytes = std::max(max_bytes, merged.info(name).size_bytes);
    total_bytes += merged.info(name).size_bytes;
  }
  EXPECT_GT(peak_bytes, 0);
  EXPECT_LE(peak_bytes, 3 * max_bytes);
  EXPECT_GT(total_bytes, 4 * max_bytes);
}

TEST_F(AdapterTest, MergesIntoEachDtype) {
  const auto folder = save_new_adapter({.rank = 4});
  const auto bf16_model = build_model(copy_.path(), at::kCPU, at::kBFloat16);
  load_weights(*bf16_model, copy_.path());
  const auto bf16_base = out_.path() / "base16";
  std::filesystem::create_directories(bf16_base);
  save_checkpoint(*bf16_model, copy_.path(), bf16_base, /*max_shard_bytes=*/100'000);
  auto config = io::read_json(folder / "adapter_config.json");
  config["base_model_name_or_path"] = bf16_base.string();
  io::write_file(folder / "adapter_config.json", config.dump());

  merge_adapter(folder, out_.path() / "merged");
  const io::CheckpointTensors merged(out_.path() / "merged");
  const io::CheckpointTensors base(bf16_base);
  EXPECT_THAT(merged.names(), testing::UnorderedElementsAreArray(base.names()));
  for (const auto& name : base.names()) {
    EXPECT_EQ(merged.info(name).dtype, at::kBFloat16);
    EXPECT_TRUE(at::equal(merged.tensor(name), base.tensor(name))) << name;  // B is zero
  }
  EXPECT_EQ(io::read_json(out_.path() / "merged/config.json"), io::read_json(bf16_base / "config.json"));
}

TEST_F(AdapterTest, ModulesToSaveAreTrainedAndGetNoAdapters) {
  const auto adapted = model({.rank = 4, .modules_to_save = {"connector", "embed_tokens", "text_model.norm"}});
  freeze_parts(*adapted, {});
  int64_t num_saved = 0;
  for (const auto& parameter : adapted->parameters().all()) {
    const bool is_saved = parameter.name.find("connector") != std::string::npos ||
                          parameter.name == "model.text_model.embed_tokens.weight" ||
                          parameter.name == "model.text_model.norm.weight";
    EXPECT_EQ(parameter.is_in_modules_to_save, is_saved) << parameter.name;
    EXPECT_EQ(parameter.tensor.requires_grad(), is_saved || parameter.is_adapter) << parameter.name;
    EXPECT_FALSE(is_saved && parameter.is_adapter) << parameter.name;
    num_saved += is_saved ? 1 : 0;
  }
  EXPECT_EQ(num_saved, 3);
  EXPECT_THAT(get_build_error({.modules_to_save = {"conector"}}),
              AllOf(HasSubstr("lora.modules_to_save"), HasSubstr("conector"), HasSubstr("model.connector")));
}

/// A merge would silently keep the base's weights for missing adapter weights.
TEST_F(AdapterTest, IncompleteAdapterIsNotMerged) {
  const auto folder = save_new_adapter({.rank = 4, .target_modules = {"q_proj"}, .modules_to_save = {"connector"}});
  const auto file = folder / "adapter_model.safetensors";
  const auto get_merge_error = [&](std::string_view name_part) {
    io::NamedTensors remaining;
    {
      const io::SafetensorsFile file_tensors(file);
      for (const auto& name : file_tensors.names()) {
        if (name.find(name_part) == std::string::npos) remaining.emplace_back(name, file_tensors.tensor(name).clone());
      }
    }
    const auto copy = out_.path() / "partial";
    std::filesystem::remove_all(copy);
    std::filesystem::copy(folder, copy);
    io::write_safetensors(copy / "adapter_model.safetensors", remaining);
    return get_error_message([&] { merge_adapter(copy, out_.path() / "merged"); });
  };
  EXPECT_THAT(get_merge_error("connector"), HasSubstr("missing: base_model.model.model.connector."));
  EXPECT_THAT(get_merge_error("text_model.layers.1."),
              HasSubstr("missing: base_model.model.model.text_model.layers.1.self_attn.q_proj.lora_A.weight"));
  EXPECT_FALSE(std::filesystem::exists(out_.path() / "merged"));
}

TEST_F(AdapterTest, ModulesToSaveAreReloadedAndMerged) {
  const nn::LoraSettings lora{.rank = 4, .target_modules = {"q_proj"}, .modules_to_save = {"connector"}};
  const std::string name = "model.connector.modality_projection.proj.weight";
  const auto adapted = model(lora);
  initialize_adapter(*adapted, 0);
  collect_parameters(*adapted).at(name).mul_(2);
  const auto folder = out_.path() / "whole_modules";
  std::filesystem::create_directories(folder);
  save_adapter(*adapted, copy_.path(), folder);
  EXPECT_EQ(read_adapter_settings(folder).modules_to_save, lora.modules_to_save);
  const at::Tensor expected = collect_parameters(*adapted).at(name);
  EXPECT_TRUE(at::equal(collect_parameters(*load_model(folder, at::kCPU, at::kFloat)).at(name), expected));
  merge_adapter(folder, out_.path() / "merged");
  EXPECT_TRUE(at::equal(io::CheckpointTensors(out_.path() / "merged").tensor(name), expected));
}

}  // namespace
}  // namespace vlmtrain::models
