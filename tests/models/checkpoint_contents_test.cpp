#include "vlmtrain/models/checkpoint_contents.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "models/checkpoint_copy.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::models {
namespace {

constexpr int64_t kShardBytes = 300'000;
constexpr const char* kFamilies[] = {
    "mixed_batch",         "full_heads_untied_tiles", "smolvlm_type_sharded", "llava_clip_llama", "nanovlm_tiles",
    "nanovlm_untied",      "qwen2_vl_images",         "qwen3_vl_images",      "qwen3_5_images",   "qwen3_5_video",
    "internvl3_tiles",     "internvl3_5_mixed",       "gemma3_published",     "gemma4_tower",     "gemma4_per_layer",
    "gemma4_unified_video"};

/// Model in bf16 of an fp32 checkpoint, with fp32 trained values that differ from both.
class WeightsToSaveTest : public testing::TestWithParam<const char*> {
 protected:
  void load(const FrozenParts& frozen_parts, const std::optional<nn::LoraSettings>& lora = std::nullopt) {
    model_ = build_model(copy_.path(), at::kCPU, at::kBFloat16, lora);
    load_weights(*model_, copy_.path());
    if (lora) initialize_adapter(*model_, 0);
    freeze_parts(*model_, frozen_parts);
    for (const auto& parameter : model_->parameters().all()) {
      if (!parameter.tensor.requires_grad()) continue;
      const at::Tensor values = parameter.tensor.detach().to(at::kFloat);
      master_weights_[parameter.name] = values + 1e-3 * at::randn_like(values);
    }
  }

  CheckpointSaveOptions make_options(const BaseWeights& base,
                                     std::optional<at::ScalarType> dtype = std::nullopt) const {
    CheckpointSaveOptions options{.base = &base, .dtype = dtype};
    for (const auto& [name, values] : master_weights_) options.master_weights[name] = {.values = values};
    return options;
  }

  io::CheckpointTensors save_and_open(const CheckpointSaveOptions& options) const {
    std::filesystem::remove_all(out());
    std::filesystem::create_directory(out());
    save_checkpoint(*model_, options, out(), kShardBytes);
    return io::CheckpointTensors(out());
  }

  std::filesystem::path out() const { return folder_.path() / "out"; }

  const CheckpointCopy copy_{GetParam()};
  const parity::TemporaryFolder folder_;
  std::unique_ptr<VisionLanguageModel> model_;
  std::map<std::string, at::Tensor> master_weights_;
};

TEST_P(WeightsToSaveTest, SavesBaseForFrozenAndMasterWeightsForTrained) {
  load({.vision_tower = true});
  const BaseWeights base(copy_.path());
  EXPECT_EQ(base.dtype(), at::kFloat);
  const io::CheckpointTensors original(copy_.path());
  const auto actual = save_and_open(make_options(base));
  int64_t num_frozen = 0, num_rounded = 0;
  for (const auto& parameter : model_->parameters().all()) {
    const std::string name = model_->get_checkpoint_tensor_name(parameter.name);
    const at::Tensor tensor = actual.tensor(name);
    ASSERT_EQ(tensor.scalar_type(), at::kFloat) << name;
    if (master_weights_.contains(parameter.name)) {
      EXPECT_TRUE(at::equal(tensor, master_weights_.at(parameter.name))) << name;
    } else if (original.contains(name)) {
      EXPECT_TRUE(at::equal(tensor, original.tensor(name))) << name;
      ++num_frozen;
      num_rounded += at::equal(tensor, parameter.tensor.detach().to(at::kFloat)) ? 0 : 1;
    }
  }
  EXPECT_GT(num_frozen, 0);
  EXPECT_GT(num_rounded, 0) << "the model's own values have the same precision";
  EXPECT_EQ(io::read_json(out() / "config.json"), io::read_json(copy_.path() / "config.json"));
  const auto reloaded = build_model(out(), at::kCPU, at::kFloat);
  EXPECT_NO_THROW(load_weights(*reloaded, out()));
}

TEST_P(WeightsToSaveTest, RequestedDtypeIsThatOfAllTensors) {
  load({.language_model = true});
  const BaseWeights base(copy_.path());
  const auto actual = save_and_open(make_options(base, at::kHalf));
  const io::CheckpointTensors original(copy_.path());
  for (const auto& parameter : model_->parameters().all()) {
    const std::string name = model_->get_checkpoint_tensor_name(parameter.name);
    ASSERT_EQ(actual.info(name).dtype, at::kHalf) << name;
    if (const auto master = master_weights_.find(parameter.name); master != master_weights_.end()) {
      EXPECT_TRUE(at::equal(actual.tensor(name), master->second.to(at::kHalf))) << name;
    } else if (original.contains(name)) {
      EXPECT_TRUE(at::equal(actual.tensor(name), original.tensor(name).to(at::kHalf))) << name << " was rounded twice";
    }
  }
  // Its frozen weights equal the base's again.
  const auto loaded = build_model(out(), at::kCPU, at::kFloat);
  load_weights(*loaded, out());
  freeze_parts(*loaded, {.language_model = true});
  restore_frozen_weights(*loaded, out(), base, 0);
  for (const auto& parameter : loaded->parameters().all()) {
    const std::string name = loaded->get_checkpoint_tensor_name(parameter.name);
    if (parameter.tensor.requires_grad() || !original.contains(name)) continue;
    EXPECT_TRUE(at::equal(parameter.tensor, original.tensor(name))) << name;
  }
}

TEST_P(WeightsToSaveTest, RemovedBaseDoesNotPreventSaving) {
  load({.vision_tower = true});
  const BaseWeights base(copy_.path());
  for (const auto& entry : std::filesystem::directory_iterator(copy_.path())) {
    std::filesystem::remove_all(entry.path());
  }
  const auto actual = save_and_open(make_options(base));
  for (const auto& parameter : model_->parameters().all()) {
    const auto master = master_weights_.find(parameter.name);
    const at::Tensor expected =
        master != master_weights_.end() ? master->second : parameter.tensor.detach().to(at::kFloat);
    EXPECT_TRUE(at::equal(actual.tensor(model_->get_checkpoint_tensor_name(parameter.name)), expected))
        << parameter.name;
  }
  EXPECT_TRUE(std::filesystem::exists(out() / "tokenizer.json"));
  EXPECT_NE(io::get_error_message([&] { BaseWeights{copy_.path()}; }), "");
}

INSTANTIATE_TEST_SUITE_P(Families, WeightsToSaveTest, testing::ValuesIn(kFamilies),
                         [](const auto& instance) { return std::string(instance.param); });

using SavedAdapterTest = WeightsToSaveTest;

TEST_P(SavedAdapterTest, AdaptersAreMasterWeightsInDtypeOfBase) {
  load({}, nn::LoraSettings{.rank = 2, .modules_to_save = {"connector"}});
  const BaseWeights base(copy_.path());
  for (const auto dtype : {std::optional<at::ScalarType>(), std::optional(at::kBFloat16)}) {
    std::filesystem::remove_all(out());
    std::filesystem::create_directory(out());
    save_adapter(*model_, make_options(base, dtype), out());
    const io::SafetensorsFile actual(out() / "adapter_model.safetensors");
    EXPECT_EQ(actual.names().size(), master_weights_.size());
    for (const auto& [name, master] : master_weights_) {
      const at::Tensor tensor = actual.tensor("base_model.model." + name);
      EXPECT_TRUE(at::equal(tensor, master.to(dtype.value_or(at::kFloat)))) << name;
    }
  }
  EXPECT_EQ(find_adapter_base(out()), copy_.path());
}

TEST_P(SavedAdapterTest, FrozenAdapterIsUnchanged) {
  const auto adapter = folder_.path() / "adapter";
  {
    const auto first_model = build_model(copy_.path(), at::kCPU, at::kFloat, nn::LoraSettings{.rank = 2});
    load_weights(*first_model, copy_.path());
    initialize_adapter(*first_model, 3);
    std::filesystem::create_directory(adapter);
    save_adapter(*first_model, copy_.path(), adapter);
  }
  load({.vision_tower = true}, read_adapter_settings(adapter));
  load_adapter(*model_, adapter);
  const BaseWeights base(copy_.path(), adapter);
  std::filesystem::create_directory(out());
  save_adapter(*model_, make_options(base, at::kBFloat16), out());
  const io::SafetensorsFile actual(out() / "adapter_model.safetensors"),
      expected(adapter / "adapter_model.safetensors");
  int64_t num_frozen = 0;
  for (const auto& name : expected.names()) {
    if (name.find("vision_model") == std::string::npos) continue;
    EXPECT_TRUE(at::equal(actual.tensor(name), expected.tensor(name))) << name;
    ++num_frozen;
  }
  EXPECT_GT(num_frozen, 10);
}

INSTANTIATE_TEST_SUITE_P(Families, SavedAdapterTest, testing::Values("mixed_batch"));

TEST(WeightsToSave, FrozenTowerComesFromItsFolder) {
  const parity::Case original("llava_original");
  const auto model = original.load_model(at::kBFloat16);
  freeze_parts(*model, {.vision_tower = true});
  const BaseWeights base(original.checkpoint());
  const parity::TemporaryFolder out;
  save_checkpoint(*model, CheckpointSaveOptions{.base = &base}, out.path(), kShardBytes);
  const io::CheckpointTensors saved_tensors(out.path());
  int64_t num_tower = 0;
  for (const auto& parameter : model->parameters().all()) {
    const auto weight_file = model->find_external_weight(parameter.name);
    if (!weight_file) continue;
    const at::Tensor expected = io::CheckpointTensors(weight_file->folder).tensor(weight_file->name);
    EXPECT_TRUE(at::equal(saved_tensors.tensor(model->get_checkpoint_tensor_name(parameter.name)), expected))
        << parameter.name;
    ++num_tower;
  }
  EXPECT_GT(num_tower, 10);
}

TEST(WeightsToSave, AddedRowsOfAFrozenTableAreTheMean) {
  const CheckpointCopy copy("text_only");
  copy.edit("config.json", [](auto& config) {
    auto& text = config["text_config"];
    text["vocab_size"] = text["vocab_size"].template get<int64_t>() + 3;
  });
  const auto model = build_model(copy.path(), at::kCPU, at::kBFloat16);
  load_weights(*model, copy.path(), {.allow_embedding_resize = true});
  freeze_parts(*model, {.language_model = true});
  const BaseWeights base(copy.path());
  const parity::TemporaryFolder out;
  save_checkpoint(*model, CheckpointSaveOptions{.base = &base}, out.path(), kShardBytes);
  const std::string name = "model.text_model.embed_tokens.weight";
  const at::Tensor table = io::CheckpointTensors(copy.path()).tensor(name);
  const io::CheckpointTensors saved_tensors(out.path());
  const at::Tensor rows = saved_tensors.tensor(name);
  ASSERT_EQ(rows.size(0), table.size(0) + 3);
  EXPECT_TRUE(at::equal(rows.narrow(0, 0, table.size(0)), table));
  EXPECT_TRUE(at::equal(rows.narrow(0, table.size(0), 3), table.mean(0, true).expand({3, -1})));
}

}  // namespace
}  // namespace vlmtrain::models
