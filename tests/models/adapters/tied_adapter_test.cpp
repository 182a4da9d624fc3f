#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "models/adapter_folder.h"
#include "models/adapters/adapter_check.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models {
namespace {

using io::get_error_message;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kHead = "base_model.model.lm_head.weight";

/// Adapter with embedding and output of a base that ties them, as PEFT 0.21.2 stores them: one of
/// the two, both with different values, or both with ensure_weight_tying.
class TiedAdapter : public testing::TestWithParam<const char*> {
 protected:
  static nn::LoraSettings settings() {
    return {.rank = 2, .target_modules = {"q_proj"}, .modules_to_save = {"embed_tokens"}};
  }

  /// Edits the adapter to PEFT's format without ensure_weight_tying: `modules`, and the requested
  /// ones of the two tensors.
  void untie_weights(const std::vector<std::string>& modules, bool has_embedding, bool has_head) const {
    auto tensors = adapter_.tensors();
    if (!has_embedding) tensors.erase(embedding_name_);
    if (has_head) tensors[kHead] = tensors.at(kHead) * 2;
    if (!has_head) tensors.erase(kHead);
    adapter_.write(tensors);
    adapter_.edit("adapter_config.json", [&](auto& content) {
      content["modules_to_save"] = modules;
      content["ensure_weight_tying"] = false;
    });
  }

  at::Tensor get_embedding(const VisionLanguageModel& model) const {
    return collect_values(model).at(embedding_name_.substr(std::string("base_model.model.").size()));
  }
  at::Tensor load_base_embedding() const {
    const auto model = build_model(adapter_.base(), at::kCPU, at::kFloat);
    load_weights(*model, adapter_.base());
    return get_embedding(*model);
  }

  /// Expects these values in the adapter and in its merged checkpoint, and an untied merged
  /// config.json.
  void expect_untied(const at::Tensor& embedding, const at::Tensor& head) const {
    const auto merged = adapter_.merge();
    for (const auto& model : {adapter_.load(), load_model(merged, at::kCPU, at::kFloat)}) {
      EXPECT_EQ(find_tied_embedding(*model), nullptr);
      EXPECT_TRUE(at::equal(get_embedding(*model), embedding));
      EXPECT_TRUE(at::equal(model->output_weight().detach(), head));
    }
    EXPECT_EQ(io::read_json(merged / "config.json").at("tie_word_embeddings"), false);
  }

  const AdapterFolder adapter_{GetParam(), settings()};
  const AdapterFolder::Tensors saved_tensors_ = adapter_.tensors();
  const std::string embedding_name_ = [this] {
    for (const auto& [name, tensor] : saved_tensors_) {
      if (name.ends_with("embed_tokens.weight")) return name;
    }
    return std::string();
  }();
};

TEST_P(TiedAdapter, IsSavedWithBothTensorsForPeft) {
  ASSERT_TRUE(saved_tensors_.contains(kHead));
  EXPECT_TRUE(at::equal(saved_tensors_.at(kHead), saved_tensors_.at(embedding_name_)));
  EXPECT_EQ(io::read_json(adapter_.path() / "adapter_config.json").at("ensure_weight_tying"), true);
  const auto model = adapter_.load();
  EXPECT_NE(find_tied_embedding(*model), nullptr);
  EXPECT_TRUE(at::equal(model->output_weight().detach(), saved_tensors_.at(embedding_name_)));
  const auto merged = load_model(adapter_.merge(), at::kCPU, at::kFloat);
  EXPECT_NE(find_tied_embedding(*merged), nullptr);
  EXPECT_TRUE(at::equal(merged->output_weight().detach(), saved_tensors_.at(embedding_name_)));
}

TEST_P(TiedAdapter, ReadsFilesOfPeftAndEarlierReleases) {
  const auto expect_tied = [&] {
    const auto model = adapter_.load();
    EXPECT_NE(find_tied_embedding(*model), nullptr);
    EXPECT_TRUE(at::equal(model->output_weight().detach(), saved_tensors_.at(embedding_name_)));
  };
  // PEFT stores the embedding under two names.
  const std::string prefix = "base_model.model.";
  const std::string module = embedding_name_.substr(prefix.size(), embedding_name_.rfind('.') - prefix.size());
  adapter_.edit("adapter_config.json", [&](auto& content) { content["modules_to_save"] = {module, "embed_tokens"}; });
  expect_tied();
  // The output is stored only if requested.
  adapter_.edit("adapter_config.json", [&](auto& content) {
    content["modules_to_save"] = {"embed_tokens", "lm_head"};
  });
  expect_tied();
  auto tensors = saved_tensors_;
  tensors.erase(kHead);
  adapter_.write(tensors);
  expect_tied();
}

TEST_P(TiedAdapter, UntiedAdapterHasTwoWeights) {
  const at::Tensor base_embedding = load_base_embedding();
  untie_weights({"embed_tokens", "lm_head"}, true, true);
  expect_untied(saved_tensors_.at(embedding_name_), saved_tensors_.at(kHead) * 2);
  adapter_.write(saved_tensors_);
  untie_weights({"lm_head"}, false, true);
  expect_untied(base_embedding, saved_tensors_.at(kHead) * 2);
  adapter_.write(saved_tensors_);
  untie_weights({"embed_tokens"}, true, false);
  expect_untied(saved_tensors_.at(embedding_name_), base_embedding);

  // Weights trained separately are saved separately.
  const auto second_adapter = adapter_.make_path("again");
  std::filesystem::create_directories(second_adapter);
  save_adapter(*adapter_.load(), adapter_.base(), second_adapter);
  EXPECT_EQ(io::read_json(second_adapter / "adapter_config.json").at("ensure_weight_tying"), false);
  EXPECT_FALSE(io::SafetensorsFile(second_adapter / "adapter_model.safetensors").contains(kHead));
  EXPECT_TRUE(at::equal(load_model(second_adapter, at::kCPU, at::kFloat)->output_weight().detach(), base_embedding));
}

TEST_P(TiedAdapter, MergeReplacesTheOutputCopyOfABase) {
  const auto base_file = adapter_.base() / "model.safetensors";
  io::NamedTensors tensors;
  {
    const io::SafetensorsFile file(base_file);
    for (const auto& name : file.names()) {
      tensors.emplace_back(name, file.tensor(name).clone());
      if (!name.ends_with("embed_tokens.weight")) continue;
      const bool is_outside = name.starts_with("language_model.");
      tensors.emplace_back(is_outside ? "language_model.lm_head.weight" : "lm_head.weight", file.tensor(name).clone());
    }
  }
  io::write_safetensors(base_file, tensors);
  const io::CheckpointTensors merged(adapter_.merge());
  for (const auto& name : merged.names()) {
    if (name.ends_with("embed_tokens.weight") || name.ends_with("lm_head.weight")) {
      EXPECT_TRUE(at::equal(merged.tensor(name), saved_tensors_.at(embedding_name_))) << name;
    }
  }

  // All commands refuse different values for tied weights.
  auto untied_tensors = saved_tensors_;
  untied_tensors[kHead] = untied_tensors.at(kHead) * 2;
  adapter_.write(untied_tensors);
  std::filesystem::remove_all(adapter_.make_path("merged"));
  const auto expected_message = AllOf(HasSubstr(kHead), HasSubstr("ensure_weight_tying"));
  EXPECT_THAT(get_error_message([&] { adapter_.load(); }), expected_message);
  EXPECT_THAT(get_error_message([&] { adapter_.merge(); }), expected_message);
  EXPECT_FALSE(std::filesystem::exists(adapter_.make_path("merged")));
}

INSTANTIATE_TEST_SUITE_P(Families, TiedAdapter,
                         testing::Values("mixed_batch", "qwen3_vl_images", "gemma3_words", "internvl3_5_mixed",
                                         "llava_siglip_qwen2"),
                         [](const auto& member) { return std::string(member.param); });

TEST(UntiedAdapter, TrainsBothWeights) {
  const AdapterFolder adapter(
      "llava_clip_llama", {.rank = 2, .target_modules = {"q_proj"}, .modules_to_save = {"embed_tokens", "lm_head"}});
  EXPECT_EQ(io::read_json(adapter.path() / "adapter_config.json").at("ensure_weight_tying"), false);
  const auto saved_tensors = adapter.tensors();
  EXPECT_TRUE(at::equal(adapter.load()->output_weight().detach(), saved_tensors.at(kHead)));
  EXPECT_EQ(io::read_json(adapter.merge() / "config.json"), io::read_json(adapter.base() / "config.json"));
}

TEST(TiedModulesToSave, TiedOutputIsTrainedWithItsEmbedding) {
  const CheckpointCopy base_checkpoint("mixed_batch");
  const auto build = [&](const std::vector<std::string>& modules) {
    return build_model(base_checkpoint.path(), at::kMeta, at::kFloat, nn::LoraSettings{.modules_to_save = modules});
  };
  EXPECT_NE(find_tied_embedding(*build({"embed_tokens", "lm_head"})), nullptr);
  EXPECT_THAT(get_error_message([&] { build({"lm_head"}); }, ExitCode::kUsage),
              AllOf(HasSubstr("lora.modules_to_save"), HasSubstr("tie_word_embeddings"), HasSubstr("embed_tokens")));
}

}  // namespace
}  // namespace vlmtrain::models
