#pragma once

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <map>
#include <string>

#include "models/checkpoints/load_weights.h"
#include "models/network/mask_decoder.h"
#include "models/network/sam_vit.h"
#include "models/network/tiny_vit.h"
#include "models/prs_med/mask_source.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::models {

/// Small mask model with random values, and its files in the formats of other programs.
struct SmallMaskModel {
  nlohmann::json encoder;  ///< sizes of the encoder
  nlohmann::json decoder;
  std::map<std::string, at::Tensor> state_dict;  ///< by the names below mask_model

  static SmallMaskModel make_sam() {
    SmallMaskModel model{.encoder = {{"hidden_size", 32},
                                     {"output_channels", 64},
                                     {"num_hidden_layers", 4},
                                     {"num_attention_heads", 2},
                                     {"image_size", 64},
                                     {"mlp_dim", 48},
                                     {"window_size", 3},
                                     {"global_attn_indexes", {1, 3}}},
                         .decoder = make_decoder_config(),
                         .state_dict = {}};
    model.fill_state_dict<SamVit>(SamVitConfig::from_json(model.encoder, "sam"));
    return model;
  }

  /// Returns a MobileSAM. Its first stage has neither heads nor windows; the published numbers
  /// replace them.
  static SmallMaskModel make_mobile_sam() {
    SmallMaskModel model{.encoder = {{"image_size", 64},
                                     {"embed_dims", {8, 16, 24, 32}},
                                     {"depths", {1, 2, 1, 1}},
                                     {"num_heads", {2, 2, 3, 2}},
                                     {"window_sizes", {7, 2, 3, 2}},
                                     {"mlp_ratio", 2.0},
                                     {"mbconv_expand_ratio", 3.0},
                                     {"out_channels", 64}},
                         .decoder = make_decoder_config(),
                         .state_dict = {}};
    model.fill_state_dict<TinyVit>(TinyVitConfig::from_json(model.encoder, "tiny"));
    return model;
  }

  /// Writes SAM's or MobileSAM's layout with its unused tensors, without `skipped_name`.
  std::filesystem::path write_original(const std::filesystem::path& file, const std::string& skipped_name = "") const {
    std::map<std::string, at::Tensor> tensors{
        {"mask_decoder.iou_prediction_head.layers.0.weight", at::ones({2, 2})},
        {"mask_decoder.output_hypernetworks_mlps.1.layers.0.bias", at::ones({2})},
        {"prompt_encoder.point_embeddings.0.weight", at::ones({1, 2})},
        {"image_encoder.layers.0.blocks.0.conv1.bn.num_batches_tracked", at::zeros({}, at::kLong)}};
    if (!encoder.contains("embed_dims")) tensors.erase("image_encoder.layers.0.blocks.0.conv1.bn.num_batches_tracked");
    for (const auto& [name, values] : state_dict) tensors[to_original_sam_name(name)] = values;
    if (!skipped_name.empty()) {
      EXPECT_EQ(tensors.erase(skipped_name), 1) << skipped_name;
    }
    io::write_safetensors(file, io::NamedTensors(tensors.begin(), tensors.end()));
    return file;
  }

  /// Writes transformers' SamModel into an existing folder.
  std::filesystem::path write_transformers(const std::filesystem::path& folder) const {
    io::NamedTensors tensors(state_dict.begin(), state_dict.end());
    tensors.emplace_back("prompt_encoder.shared_embedding.positional_embedding", at::ones({2, 2}));
    tensors.emplace_back("mask_decoder.iou_prediction_head.proj_in.bias", at::ones({2}));
    io::write_safetensors(folder / "model.safetensors", tensors);
    const nlohmann::json config{{"model_type", "sam"}, {"vision_config", encoder}, {"mask_decoder_config", decoder}};
    io::write_file(folder / "config.json", config.dump());
    return folder;
  }

 private:
  static nlohmann::json make_decoder_config() {
    return {{"hidden_size", 64}, {"mlp_dim", 40}, {"num_attention_heads", 8}, {"num_hidden_layers", 2}};
  }

  template <class Encoder, class Config>
  void fill_state_dict(const Config& config) {
    nn::ParameterStore store{at::TensorOptions(at::kMeta)};
    const nn::ParameterScope scope(store, nn::Component::kMaskEncoder, "mask_model");
    const Encoder vision_encoder(scope / "vision_encoder", config);
    const MaskDecoder mask_decoder(scope, MaskDecoderConfig::from_json(decoder, "decoder"));
    for (nn::Parameter parameter : store.all()) {
      parameter.initial_values = {.mean = 0, .deviation = 1};  // values of all parameters differ
      state_dict[parameter.name.substr(std::string("mask_model.").size())] = make_initial_values(parameter, 3);
    }
  }
};

}  // namespace vlmtrain::models
