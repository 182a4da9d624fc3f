#include "vlmtrain/models/checkpoint.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "io/temporary_folder.h"
#include "models/checkpoint_copy.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models {
namespace {

using io::get_error_message;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::map<std::string, at::Tensor> read_weights(const std::filesystem::path& folder) {
  const io::CheckpointTensors checkpoint(folder);
  std::map<std::string, at::Tensor> weights;
  for (const auto& name : checkpoint.names()) weights[name] = checkpoint.tensor(name).clone();
  return weights;
}

void replace_weights(const std::filesystem::path& folder, const std::map<std::string, at::Tensor>& weights) {
  std::filesystem::remove(folder / "model.safetensors");
  io::write_checkpoint_tensors(folder, {weights.begin(), weights.end()});
}

std::map<std::string, at::Tensor> collect_weights(const VisionLanguageModel& model) {
  std::map<std::string, at::Tensor> weights;
  for (const auto& parameter : model.parameters().all()) weights[parameter.name] = parameter.tensor.detach();
  return weights;
}

std::string get_load_error(const std::filesystem::path& folder) {
  const auto model = build_model(folder, at::kCPU, at::kFloat);
  return get_error_message([&] { load_weights(*model, folder); });
}

TEST(LoadWeights, ListsEveryDifferenceAtOnce) {
  const CheckpointCopy copy("full_heads_untied_tiles");
  auto weights = read_weights(copy.path());
  weights.erase("lm_head.weight");
  weights.erase("model.text_model.norm.weight");
  weights["model.text_model.layers.7.mlp.up_proj.weight"] = at::ones({3});
  weights["model.vision_model.post_layernorm.bias"] = at::ones({31});
  replace_weights(copy.path(), weights);
  EXPECT_THAT(get_load_error(copy.path()),
              AllOf(HasSubstr(copy.path().string()), HasSubstr("4 differences"), HasSubstr("missing: lm_head.weight"),
                    HasSubstr("missing: model.text_model.norm.weight"),
                    HasSubstr("unexpected: model.text_model.layers.7.mlp.up_proj.weight"),
                    HasSubstr("model.vision_model.post_layernorm.bias has shape [31], but the config requires [32]")));
}

TEST(LoadWeights, TruncatesLongLists) {
  const CheckpointCopy copy("mixed_batch");
  replace_weights(copy.path(), {{"strange", at::ones({1})}});
  EXPECT_THAT(get_load_error(copy.path()), AllOf(HasSubstr("58 of 58 tensors"), HasSubstr("the files have strange"),
                                                 Not(HasSubstr("model.allow_missing"))));
}

TEST(LoadWeights, TiedOutputProjectionMayBeStored) {
  const CheckpointCopy copy("mixed_batch");
  auto weights = read_weights(copy.path());
  weights["lm_head.weight"] = weights.at("model.text_model.embed_tokens.weight").clone();
  replace_weights(copy.path(), weights);
  const auto model = build_model(copy.path(), at::kCPU, at::kFloat);
  EXPECT_NO_THROW(load_weights(*model, copy.path()));
  EXPECT_TRUE(at::equal(model->output_weight(), weights.at("lm_head.weight")));
}

TEST(LoadWeights, ConvertsToDtypeOfModel) {
  const parity::Case origin("mixed_batch");
  const auto bf16_model = origin.load_model(at::kBFloat16);
  const auto fp32_model = origin.load_model();
  for (size_t i = 0; i < fp32_model->parameters().all().size(); ++i) {
    const auto& parameter = fp32_model->parameters().all()[i];
    EXPECT_TRUE(at::equal(bf16_model->parameters().all()[i].tensor, parameter.tensor.to(at::kBFloat16)))
        << parameter.name;
  }
}

TEST(BuildModel, UnknownFamilyIsRefusedWithTheKnownOnes) {
  const CheckpointCopy copy("text_only");
  copy.edit("config.json", [](auto& config) { config["model_type"] = "idefix"; });
  EXPECT_THAT(get_error_message([&] { build_model(copy.path(), at::kCPU, at::kFloat); }),
              AllOf(HasSubstr((copy.path() / "config.json").string()), HasSubstr("idefix"), HasSubstr("idefics3"),
                    HasSubstr("smolvlm")));
}

TEST(LoadWeights, RefusesBitsandbytesWeights) {
  const CheckpointCopy copy("text_only");
  const auto model = build_model(copy.path(), at::kCPU, at::kFloat);
  io::NamedTensors tensors;
  const io::SafetensorsFile file(copy.path() / "model.safetensors");
  for (const auto& name : file.names()) tensors.emplace_back(name, file.tensor(name).clone());
  const std::string quant_state = tensors.back().first + ".quant_state.bitsandbytes__nf4";
  tensors.emplace_back(quant_state, at::zeros({4}, at::kByte));
  io::write_safetensors(copy.path() / "model.safetensors", tensors);
  EXPECT_THAT(get_error_message([&] { load_weights(*model, copy.path()); }),
              AllOf(HasSubstr(copy.path().string()), HasSubstr(quant_state), HasSubstr("model.quantization=nf4")));
}

TEST(LoadWeights, RefusesIntegerWeights) {
  const CheckpointCopy copy("full_heads_untied_tiles");
  const std::string projection = "model.text_model.layers.0.self_attn.q_proj.weight";
  const auto original = read_weights(copy.path());
  for (const auto& [dtype, name] :
       {std::pair{at::kInt, "I32"}, {at::kLong, "I64"}, {at::kByte, "U8"}, {at::kChar, "I8"}, {at::kBool, "BOOL"}}) {
    auto weights = original;
    weights.at(projection) = weights.at(projection).to(dtype);
    replace_weights(copy.path(), weights);
    EXPECT_THAT(get_load_error(copy.path()),
                HasSubstr(fmt::format("{} has dtype {}, which is not a weight dtype", projection, name)));
  }
  for (const auto dtype : {at::kHalf, at::kBFloat16, at::kDouble}) {
    auto weights = original;
    weights.at(projection) = weights.at(projection).to(dtype);
    replace_weights(copy.path(), weights);
    const auto model = build_model(copy.path(), at::kCPU, at::kFloat);
    EXPECT_NO_THROW(load_weights(*model, copy.path())) << c10::toString(dtype);
  }
}

TEST(SaveCheckpoint, RefusesQuantizedWeights) {
  const CheckpointCopy copy("text_only");
  const auto model =
      build_model(copy.path(), at::kCPU, at::kFloat, nn::LoraSettings{.rank = 2}, nn::Quantization::kInt8);
  initialize_weights(*model, 1);
  const parity::TemporaryFolder out;
  try {
    save_checkpoint(*model, copy.path(), out.path(), 1'000'000);
    FAIL() << "saved quantized weights, which transformers cannot load";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("quantized"), HasSubstr("vlmtrain merge")));
  }
  EXPECT_TRUE(std::filesystem::is_empty(out.path()));
}

struct ConfigMistake {
  const char* name;
  void (*edit)(nlohmann::json& config);
  std::vector<std::string> expected_messages;
};

class BuildModelRefuses : public testing::TestWithParam<ConfigMistake> {};

TEST_P(BuildModelRefuses, InvalidConfig) {
  const CheckpointCopy copy("full_heads_untied_tiles");
  copy.edit("config.json", GetParam().edit);
  const auto message = get_error_message([&] { build_model(copy.path(), at::kCPU, at::kFloat); });
  EXPECT_THAT(message, HasSubstr("config.json"));
  for (const auto& expected : GetParam().expected_messages) EXPECT_THAT(message, HasSubstr(expected));
}

INSTANTIATE_TEST_SUITE_P(
    Mistakes, BuildModelRefuses,
    testing::Values(
        ConfigMistake{"NoVisionSection", [](auto& c) { c.erase("vision_config"); }, {"vision_config"}},
        ConfigMistake{
            "OtherTextModel", [](auto& c) { c["text_config"]["model_type"] = "mistral"; }, {"mistral", "llama"}},
        ConfigMistake{"ScaleFactor", [](auto& c) { c["scale_factor"] = 3; }, {"scale_factor 3", "4 patches"}},
        ConfigMistake{"ScaleFactorZero", [](auto& c) { c["scale_factor"] = 0; }, {"scale_factor 0"}},
        ConfigMistake{"ImageToken", [](auto& c) { c["image_token_id"] = 400; }, {"image_token_id 400"}},
        ConfigMistake{"TypeOfAKey", [](auto& c) { c["text_config"]["hidden_size"] = "big"; }, {"hidden_size", "big"}},
        ConfigMistake{"VisionHeads",
                      [](auto& c) { c["vision_config"]["num_attention_heads"] = 5; },
                      {"vision_config", "num_attention_heads 5"}},
        ConfigMistake{"KeyValueHeads",
                      [](auto& c) { c["text_config"]["num_key_value_heads"] = 3; },
                      {"text_config", "num_key_value_heads 3"}},
        ConfigMistake{"VisionActivation",
                      [](auto& c) { c["vision_config"]["hidden_act"] = "swish"; },
                      {"swish", "gelu_pytorch_tanh"}},
        ConfigMistake{"TextActivation", [](auto& c) { c["text_config"]["hidden_act"] = "gelu"; }, {"gelu", "silu"}},
        ConfigMistake{"RopeScaling",
                      [](auto& c) {
                        c["text_config"]["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 8}};
                      },
                      {"rope_scaling", "dynamic"}},
        ConfigMistake{
            "PatchLargerThanTile", [](auto& c) { c["vision_config"]["patch_size"] = 64; }, {"patch_size 64"}}),
    [](const auto& instance) { return instance.param.name; });

TEST(BuildModel, DropsPixelsOfPartialPatches) {
  // A convolution without padding drops the rest of a tile. SmolVLM-Instruct has such sizes: tiles
  // of 384, patches of 14.
  const CheckpointCopy copy("full_heads_untied_tiles");
  copy.edit("config.json", [](auto& config) { config["vision_config"]["image_size"] = 37; });
  const auto wide_model = build_model(copy.path(), at::kCPU, at::kFloat);
  load_weights(*wide_model, copy.path());
  const auto tiles = copy.origin().samples().at(0).pixel_values.narrow(0, 0, 2);
  const auto padded_tiles = at::ones({2, 3, 37, 37}, at::kByte);
  padded_tiles.narrow(2, 0, 32).narrow(3, 0, 32).copy_(tiles);
  EXPECT_TRUE(at::equal(wide_model->get_all_image_features({padded_tiles, {}}).features,
                        copy.origin().load_model()->get_all_image_features({tiles, {}}).features));
}

TEST(SaveCheckpoint, WritesDtypeIntoConfig) {
  const CheckpointCopy copy("grouped_tied_one_image");
  const auto model = copy.origin().load_model(at::kBFloat16);
  const parity::TemporaryFolder out;
  save_checkpoint(*model, copy.path(), out.path(), 1'000'000);
  const auto config = io::read_json(out.path() / "config.json");
  EXPECT_EQ(config.contains("torch_dtype") ? config["torch_dtype"] : config.at("dtype"), "bfloat16");
  EXPECT_EQ(io::CheckpointTensors(out.path()).info("model.text_model.norm.weight").dtype, at::kBFloat16);
}

TEST(SaveCheckpoint, RefusesFolderWithModel) {
  const CheckpointCopy copy("text_only");
  const auto model = copy.origin().load_model();
  const parity::TemporaryFolder out;
  save_checkpoint(*model, copy.path(), out.path(), 1'000'000);
  EXPECT_ANY_THROW(save_checkpoint(*model, copy.path(), out.path(), 1'000'000));
}

TEST(InitializeWeights, DependsOnKindOfTensor) {
  const CheckpointCopy copy("mixed_batch");
  const auto model = build_model(copy.path(), at::kCPU, at::kFloat);
  initialize_weights(*model, 3);
  const double layers = 2;  // in the vision tower and in the language model
  for (const auto& parameter : model->parameters().all()) {
    const std::string& name = parameter.name;
    const at::Tensor weight = parameter.tensor.detach();
    if (weight.dim() < 2) {
      EXPECT_TRUE(weight.eq(name.ends_with("bias") ? 0.0 : 1.0).all().item<bool>()) << name;
      continue;
    }
    double expected_std = 1.0 / std::sqrt(static_cast<double>(weight.numel() / weight.size(0)));
    if (name.find("position_embedding") != std::string::npos) expected_std = 0.5;
    for (const char* suffix : {"out_proj.weight", "fc2.weight", "o_proj.weight", "down_proj.weight"}) {
      if (name.ends_with(suffix)) expected_std /= std::sqrt(2 * layers);
    }
    EXPECT_NEAR(weight.std().item<double>() / expected_std, 1.0, 0.15) << name;
    EXPECT_NEAR(weight.mean().item<double>() / expected_std, 0.0, 0.15) << name;
  }
}

TEST(InitializeWeights, DependsOnSeedAndNameOnly) {
  const CheckpointCopy copy("mixed_batch");
  const auto initialize = [&](uint64_t seed) {
    auto model = build_model(copy.path(), at::kCPU, at::kFloat);
    initialize_weights(*model, seed);
    std::map<std::string, at::Tensor> weights;
    for (const auto& parameter : model->parameters().all()) weights[parameter.name] = parameter.tensor.detach();
    return weights;
  };
  const auto first = initialize(1);
  const auto repeated = initialize(1);
  const auto other_seed = initialize(2);
  copy.edit("config.json", [](auto& config) {
    config["vision_config"]["intermediate_size"] = 40;  // changes the number of saved values per block
  });
  const auto narrower_model = initialize(1);
  for (const auto& [name, weight] : first) {
    EXPECT_TRUE(at::equal(repeated.at(name), weight)) << name;
    EXPECT_EQ(at::equal(other_seed.at(name), weight), weight.dim() < 2) << name;
  }
  for (const auto& [name, weight] : narrower_model) {
    if (weight.sizes() != first.at(name).sizes()) continue;
    EXPECT_TRUE(at::equal(first.at(name), weight)) << name;
  }
}

TEST(LoadWeights, InitializesMissingWeights) {
  const CheckpointCopy copy("mixed_batch");
  auto weights = read_weights(copy.path());
  const std::string missing_name = "model.connector.modality_projection.proj.weight";
  weights.erase(missing_name);
  replace_weights(copy.path(), weights);
  const auto model = build_model(copy.path(), at::kCPU, at::kFloat);
  const auto result = load_weights(*model, copy.path(), {.allow_missing = {"connector"}, .seed = 3});
  ASSERT_EQ(result.initialized_parameters.size(), 1);
  EXPECT_EQ(result.initialized_parameters.front().name, missing_name);
  EXPECT_GT(result.initialized_parameters.front().tensor.std().item<double>(), 0);
  const auto second_model = build_model(copy.path(), at::kCPU, at::kFloat);
  load_weights(*second_model, copy.path(), {.allow_missing = {"connector"}, .seed = 3});
  EXPECT_TRUE(at::equal(collect_weights(*second_model).at(missing_name), collect_weights(*model).at(missing_name)));
  EXPECT_THAT(get_error_message([&] { load_weights(*second_model, copy.path(), {.allow_missing = {"lm_head"}}); }),
              HasSubstr("missing: " + missing_name));
}

TEST(LoadWeights, SkipsUnexpectedWeights) {
  const CheckpointCopy copy("mixed_batch");
  auto weights = read_weights(copy.path());
  weights["model.other_tower.proj.weight"] = at::ones({3});
  replace_weights(copy.path(), weights);
  const auto model = build_model(copy.path(), at::kCPU, at::kFloat);
  const auto result = load_weights(*model, copy.path(), {.allow_unexpected = {"other_tower"}});
  EXPECT_THAT(result.skipped_tensor_names, testing::ElementsAre("model.other_tower.proj.weight"));
  EXPECT_TRUE(result.initialized_parameters.empty());
}

TEST(LoadWeights, AddsMeanRows) {
  const CheckpointCopy copy("full_heads_untied_tiles");
  const auto stored_weights = read_weights(copy.path());
  const std::string table = "model.text_model.embed_tokens.weight";
  const int64_t rows = stored_weights.at(table).size(0);
  copy.edit("config.json", [&](auto& config) { config["text_config"]["vocab_size"] = rows + 5; });
  const auto model = build_model(copy.path(), at::kCPU, at::kFloat);
  EXPECT_THAT(get_error_message([&] { load_weights(*model, copy.path()); }), HasSubstr("has shape"));
  const auto result = load_weights(*model, copy.path(), {.allow_embedding_resize = true});
  EXPECT_EQ(result.resized_parameters.size(), 2);
  const auto new_table = collect_weights(*model).at(table);
  EXPECT_TRUE(at::equal(new_table.narrow(0, 0, rows), stored_weights.at(table)));
  for (int64_t row = rows; row < rows + 5; ++row)
    EXPECT_TRUE(at::allclose(new_table[row], stored_weights.at(table).mean(0)));
}

}  // namespace
}  // namespace vlmtrain::models
