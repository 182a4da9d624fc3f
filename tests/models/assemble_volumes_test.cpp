#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "models/brain_llava/tower_checkpoint.h"
#include "models/checkpoint_copy.h"
#include "models/network/volume_transformer.h"
#include "models/processing/conversation_processor.h"
#include "parity/case.h"
#include "parity/deviations.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models {
namespace {

namespace fs = std::filesystem;
using brain_llava::TowerCheckpoint;
using io::get_error_message;
using testing::AllOf;
using testing::HasSubstr;

/// Weights of MONAI's ViT under its names, listed by
/// tests/parity/reference/modules/volume_tower.py.
class MonaiTower {
 public:
  explicit MonaiTower(const std::string& name)
      : file_(parity::source_folder() / "tests/parity/data/volume_tower" / (name + ".safetensors")) {}

  at::Tensor tensor(const std::string& name) const { return file_.tensor(name); }

  /// Writes the weights with `name_prefix` before each name and without `skipped_name`.
  fs::path write(const fs::path& file, const std::string& name_prefix = "",
                 const std::string& skipped_name = "") const {
    io::NamedTensors weights;
    for (const auto& name : file_.names()) {
      const std::string prefix = "parameter.";
      if (!name.starts_with(prefix) || name == prefix + skipped_name) continue;
      weights.emplace_back(name_prefix + name.substr(prefix.size()), file_.tensor(name).clone());
    }
    weights.emplace_back(name_prefix + "classification_head.0.weight", at::arange(4, at::kFloat));
    io::write_safetensors(file, weights);
    return file;
  }

 private:
  io::SafetensorsFile file_;
};

struct MonaiCase {
  std::string name;
  std::string name_prefix;
  VolumeShape size;
  int64_t heads;
};

class MonaiTowerSource : public testing::TestWithParam<MonaiCase> {
 protected:
  const parity::TemporaryFolder folder_;
};

TEST_P(MonaiTowerSource, MatchesMonai) {
  const auto& test_case = GetParam();
  const MonaiTower monai(test_case.name);
  const TowerCheckpoint source(monai.write(folder_.path() / "vit.safetensors", test_case.name_prefix));
  const nlohmann::ordered_json preset{{"num_channels", test_case.name == "perceptron" ? 2 : 1},
                                      {"modalities", {"T1w"}},
                                      {"positions", "factorized"},
                                      {"max_patches", 6}};
  const auto config = source.config(preset, {.num_heads = test_case.heads, .volume_size = test_case.size});
  nn::ParameterStore store{at::TensorOptions(at::kFloat)};
  const VolumeTransformer tower(nn::ParameterScope(store, nn::Component::kVisionTower, "vision_tower"),
                                VolumeTransformerConfig::from_json(nlohmann::json(config), "vit"));
  source.check_weights(store.all());
  for (const auto& parameter : store.all()) {
    const auto weight = source.find_weight(parameter);
    if (parameter.name.ends_with("modality_embeddings")) {
      EXPECT_FALSE(weight);
      parameter.set_values(at::zeros_like(parameter.tensor));
      continue;
    }
    ASSERT_TRUE(weight) << parameter.name;
    EXPECT_EQ(weight->shape, parameter.sizes().vec());
    parameter.set_values(weight->materialize());
  }
  const at::NoGradGuard no_gradients;
  EXPECT_LE(parity::relative_difference(tower(monai.tensor("volumes"), {}, 0), monai.tensor("features")), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Towers, MonaiTowerSource,
                         testing::Values(MonaiCase{"learned", "", {8, 12, 16}, 3},
                                         MonaiCase{"class_token", "module.", {8, 8, 8}, 2},
                                         MonaiCase{"qkv_bias", "module.vision_encoder.", {8, 8, 12}, 2},
                                         MonaiCase{"perceptron", "vit.", {8, 8, 8}, 2}),
                         [](const auto& instance) { return instance.param.name; });

class VolumeAssembly : public testing::Test {
 protected:
  std::string get_error(const AssemblyOptions& options, ExitCode code) const {
    const std::string message =
        get_error_message([&] { assemble_checkpoint(options, folder_.path() / "refused"); }, code);
    EXPECT_FALSE(fs::exists(folder_.path() / "refused"));
    return message;
  }

  /// Writes the weights of a tower of the preset's sizes, except for two blocks and a table for
  /// volumes of 24 x 32 x 32 voxels.
  fs::path write_tower(const std::string& name_prefix) const {
    nn::ParameterStore store{at::TensorOptions(at::kFloat)};
    const VolumeTransformer tower(nn::ParameterScope(store, nn::Component::kVisionTower, "t"),
                                  VolumeTransformerConfig::from_json({{"hidden_size", 96},
                                                                      {"intermediate_size", 64},
                                                                      {"num_hidden_layers", 2},
                                                                      {"num_attention_heads", 4},
                                                                      {"patch_size", 8},
                                                                      {"image_size", {24, 32, 32}}},
                                                                     "tower"));

    io::NamedTensors weights;
    for (const auto& parameter : store.all()) {
      weights.emplace_back(name_prefix + parameter.name.substr(2), at::randn(parameter.sizes()));
    }
    io::write_safetensors(folder_.path() / "tower.safetensors", weights);
    return folder_.path() / "tower.safetensors";
  }

  const parity::TemporaryFolder folder_;
};

class VolumeAssemblyFromTextModel : public VolumeAssembly, public testing::WithParamInterface<const char*> {};

TEST_P(VolumeAssemblyFromTextModel, HasWeightsOfItsSources) {
  const parity::Case llava(GetParam());
  const auto out = folder_.path() / "out";
  const auto result = assemble_checkpoint({.preset = "brain-llava-tiny",
                                           .text_model = llava.checkpoint(),
                                           .volume_tower = write_tower("module."),
                                           .volume_size = VolumeShape{24, 32, 32}},
                                          out);
  EXPECT_EQ(result.num_volume_tensors, 2 * 11 + 5);
  EXPECT_EQ(result.num_random_tensors, 5) << "projector and modalities";
  const auto config = io::read_json(out / "config.json");
  EXPECT_EQ(config["vision_config"]["image_size"], (nlohmann::json{24, 32, 32}));
  EXPECT_EQ(config["vision_config"]["num_hidden_layers"], 2);

  const auto model = build_model(out, at::kCPU, at::kFloat);
  load_weights(*model, out);
  const io::SafetensorsFile tower(folder_.path() / "tower.safetensors");
  const std::string prefix = "vision_tower.";
  for (const auto& parameter : model->parameters().all()) {
    if (!parameter.name.starts_with(prefix) || parameter.name.ends_with("modality_embeddings")) continue;
    EXPECT_TRUE(at::equal(parameter.tensor, tower.tensor("module." + parameter.name.substr(prefix.size()))))
        << parameter.name;
  }
  data::Sample text_sample;
  text_sample.token_ids = {5, 17, 40, 41, 9, 100};
  text_sample.label_mask = {0, 0, 0, 1, 1, 1};
  const auto batch = data::collate(std::span(&text_sample, 1));
  const at::NoGradGuard no_gradients;
  const auto compute_logits = [&](const VisionLanguageModel& candidate) {
    const auto output = candidate.forward(batch, {.positions = at::arange(batch.tokens(), at::kLong)});
    return at::matmul(output.hidden_states, candidate.output_weight().t());
  };
  const at::Tensor expected = compute_logits(*llava.load_model());
  EXPECT_TRUE(at::equal(compute_logits(*model).narrow(1, 0, expected.size(1)), expected));
  EXPECT_EQ(load_tokenizer(out).token_to_id("<image>"), config["image_token_id"].get<int64_t>());
}

INSTANTIATE_TEST_SUITE_P(TextModels, VolumeAssemblyFromTextModel,
                         testing::Values("llava_clip_mistral", "llava_original", "llava_siglip_qwen2"),
                         [](const auto& instance) { return instance.param; });

TEST_F(VolumeAssembly, AcceptsPlainTextModel) {
  const CheckpointCopy copy("llava_clip_mistral");
  const auto config = io::read_json(copy.path() / "config.json");
  copy.edit("config.json", [&](auto& edited_config) {
    edited_config = config["text_config"];
    edited_config["model_type"] = "mistral";
    edited_config["tie_word_embeddings"] = true;  // the weights contradict it: they have a separate output
  });
  io::NamedTensors text_tensors;
  {
    const io::CheckpointTensors tensors(copy.path());
    const std::string prefix = "model.language_model.";
    for (const auto& name : tensors.names()) {
      if (name.starts_with(prefix))
        text_tensors.emplace_back("model." + name.substr(prefix.size()), tensors.tensor(name).clone());
      if (name.starts_with("lm_head.")) text_tensors.emplace_back(name, tensors.tensor(name).clone());
    }
  }
  for (const auto& entry : fs::directory_iterator(copy.path())) {
    if (entry.path().filename().string().find("safetensors") != std::string::npos) fs::remove(entry.path());
  }
  io::write_safetensors(copy.path() / "model.safetensors", text_tensors);
  const auto result =
      assemble_checkpoint({.preset = "brain-llava-tiny", .text_model = copy.path()}, folder_.path() / "out");
  EXPECT_EQ(result.num_text_tensors, std::ssize(text_tensors));
  const auto model = build_model(folder_.path() / "out", at::kCPU, at::kFloat);
  load_weights(*model, folder_.path() / "out");
}

TEST_F(VolumeAssembly, ReportsMissingSettingsAndTensors) {
  const MonaiTower monai("learned");
  const auto tower = monai.write(folder_.path() / "vit.safetensors", "module.", "blocks.1.attn.qkv.weight");
  const auto message =
      get_error({.preset = "brain-llava-tiny", .volume_tower = tower, .num_tower_heads = 3}, ExitCode::kUsage);
  EXPECT_THAT(message, AllOf(HasSubstr("24 patches with a side of 4 voxels"), HasSubstr("--volume-size")));
  const TowerCheckpoint source(tower);
  nn::ParameterStore store{at::TensorOptions(at::kMeta)};
  const auto config = source.config({{"modalities", {"T1w"}}}, {.num_heads = 3, .volume_size = VolumeShape{8, 12, 16}});
  const VolumeTransformer vision_tower(nn::ParameterScope(store, nn::Component::kVisionTower, "vision_tower"),
                                       VolumeTransformerConfig::from_json(nlohmann::json(config), "vit"));
  EXPECT_THAT(get_error_message([&] { source.check_weights(store.all()); }, ExitCode::kBadData),
              HasSubstr("missing: module.blocks.1.attn.qkv.weight"));
}

TEST_F(VolumeAssembly, RefusesUnsupportedSources) {
  const auto file = folder_.path() / "other.safetensors";
  io::write_safetensors(file, io::NamedTensors{{"image_encoder.pos_embed", at::randn({2})}});
  EXPECT_THAT(get_error({.preset = "brain-llava-tiny", .volume_tower = file}, ExitCode::kBadData),
              AllOf(HasSubstr("patch_embedding"), HasSubstr("image_encoder.pos_embed")));
  EXPECT_THAT(get_error({.preset = "brain-llava-tiny", .mask_model = file}, ExitCode::kUsage),
              HasSubstr("--mask-model"));
  EXPECT_THAT(get_error({.preset = "prs-med-tiny", .volume_tower = file}, ExitCode::kUsage),
              HasSubstr("--volume-tower"));
  EXPECT_THAT(get_error({.preset = "llava-tiny", .volume_tower = file}, ExitCode::kUsage),
              AllOf(HasSubstr("llava-tiny"), HasSubstr("brain-llava-7b"), HasSubstr("prs-med-7b")));
}

}  // namespace
}  // namespace vlmtrain::models
