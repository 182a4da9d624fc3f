#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "models/network/mask_decoder.h"
#include "models/network/sam_vit.h"
#include "models/prs_med/mask_source.h"

namespace vlmtrain::models {
namespace {

using NameSet = std::set<std::string>;

void add_weight_and_bias(NameSet& names, const std::string& module) {
  names.insert(module + ".weight");
  names.insert(module + ".bias");
}

/// Returns the names of ImageEncoderViT in sam_vit_b_01ec64.pth.
NameSet list_vit_encoder_names() {
  NameSet names{"image_encoder.pos_embed", "image_encoder.neck.0.weight", "image_encoder.neck.2.weight"};
  add_weight_and_bias(names, "image_encoder.patch_embed.proj");
  for (const int norm : {1, 3}) add_weight_and_bias(names, fmt::format("image_encoder.neck.{}", norm));
  for (int i = 0; i < 12; ++i) {
    const auto block = fmt::format("image_encoder.blocks.{}.", i);
    for (const char* module : {"norm1", "norm2", "attn.qkv", "attn.proj", "mlp.lin1", "mlp.lin2"}) {
      add_weight_and_bias(names, block + module);
    }
    for (const char* table : {"attn.rel_pos_h", "attn.rel_pos_w"}) names.insert(block + table);
  }
  return names;
}

/// Returns the names of PromptEncoder and MaskDecoder in both checkpoints: the used ones, or the
/// others.
NameSet list_decoder_names(bool are_used) {
  NameSet names;
  if (!are_used) {
    for (int i = 0; i < 4; ++i) names.insert(fmt::format("prompt_encoder.point_embeddings.{}.weight", i));
    names.insert("prompt_encoder.not_a_point_embed.weight");
    for (const int i : {0, 1, 3, 4, 6})
      add_weight_and_bias(names, fmt::format("prompt_encoder.mask_downscaling.{}", i));
    for (int layer = 0; layer < 3; ++layer) {
      add_weight_and_bias(names, fmt::format("mask_decoder.iou_prediction_head.layers.{}", layer));
      for (int mask = 1; mask < 4; ++mask) {
        add_weight_and_bias(names, fmt::format("mask_decoder.output_hypernetworks_mlps.{}.layers.{}", mask, layer));
      }
    }
    return names;
  }
  names = {"prompt_encoder.pe_layer.positional_encoding_gaussian_matrix", "prompt_encoder.no_mask_embed.weight",
           "mask_decoder.iou_token.weight", "mask_decoder.mask_tokens.weight"};
  const auto add_attention = [&names](const std::string& module) {
    for (const char* linear : {"q_proj", "k_proj", "v_proj", "out_proj"}) {
      add_weight_and_bias(names, fmt::format("{}.{}", module, linear));
    }
  };
  const std::string transformer = "mask_decoder.transformer.";
  for (int i = 0; i < 2; ++i) {
    const auto layer = fmt::format("{}layers.{}.", transformer, i);
    for (const char* attention : {"self_attn", "cross_attn_token_to_image", "cross_attn_image_to_token"}) {
      add_attention(layer + attention);
    }
    for (const char* module : {"norm1", "norm2", "norm3", "norm4", "mlp.lin1", "mlp.lin2"}) {
      add_weight_and_bias(names, layer + module);
    }
  }
  add_attention(transformer + "final_attn_token_to_image");
  add_weight_and_bias(names, transformer + "norm_final_attn");
  for (const int i : {0, 1, 3}) add_weight_and_bias(names, fmt::format("mask_decoder.output_upscaling.{}", i));
  for (int layer = 0; layer < 3; ++layer) {
    add_weight_and_bias(names, fmt::format("mask_decoder.output_hypernetworks_mlps.0.layers.{}", layer));
  }
  return names;
}

/// Returns the names of TinyViT in mobile_sam.pt, below the encoder.
NameSet list_tiny_vit_names() {
  NameSet names{"neck.0.weight", "neck.2.weight"};
  const auto add_convolution = [&names](const std::string& module) {
    names.insert(module + ".c.weight");
    add_weight_and_bias(names, module + ".bn");
    for (const char* statistic : {"running_mean", "running_var", "num_batches_tracked"}) {
      names.insert(fmt::format("{}.bn.{}", module, statistic));
    }
  };
  for (const char* module : {"norm_head", "head", "neck.1", "neck.3"}) add_weight_and_bias(names, module);
  for (const int i : {0, 2}) add_convolution(fmt::format("patch_embed.seq.{}", i));
  const std::vector<int> depths{2, 2, 6, 2};
  for (size_t layer = 0; layer < depths.size(); ++layer) {
    for (int convolution = 1; convolution <= 3; ++convolution) {
      if (layer < 3) add_convolution(fmt::format("layers.{}.downsample.conv{}", layer, convolution));
    }
    for (int i = 0; i < depths[layer]; ++i) {
      const auto block = fmt::format("layers.{}.blocks.{}.", layer, i);
      if (layer == 0) {
        for (int convolution = 1; convolution <= 3; ++convolution) {
          add_convolution(fmt::format("{}conv{}", block, convolution));
        }
        continue;
      }
      for (const char* module : {"attn.norm", "attn.qkv", "attn.proj", "mlp.norm", "mlp.fc1", "mlp.fc2"}) {
        add_weight_and_bias(names, block + module);
      }
      names.insert(block + "attn.attention_biases");
      add_convolution(block + "local_conv");
    }
  }
  return names;
}

template <class Module, class Config>
NameSet list_original_names(const std::string& module_path, const Config& config) {
  nn::ParameterStore store{at::TensorOptions(at::kMeta)};
  const nn::ParameterScope scope(store, nn::Component::kMaskEncoder, "mask");
  const Module module(module_path.empty() ? scope : scope / module_path, config);
  NameSet names;
  for (const auto& parameter : store.all()) {
    EXPECT_TRUE(names.insert(to_original_sam_name(parameter.name.substr(5))).second) << parameter.name;
  }
  return names;
}

TEST(SamNamesTest, EncoderHasAllTensorsOfSam) {
  EXPECT_THAT(list_original_names<SamVit>("vision_encoder", SamVitConfig()),
              testing::ContainerEq(list_vit_encoder_names()));
}

TEST(SamNamesTest, DecoderHasAllUsedTensors) {
  EXPECT_THAT(list_original_names<MaskDecoder>("", MaskDecoderConfig()),
              testing::ContainerEq(list_decoder_names(true)));
}

/// The files have 177 tensors of the encoder and 137 others.
TEST(SamNamesTest, ListsAreComplete) {
  EXPECT_EQ(list_vit_encoder_names().size(), 177);
  EXPECT_EQ(list_decoder_names(true).size() + list_decoder_names(false).size(), 137);
}

TEST(SamNamesTest, TinyVitKeepsItsNames) {
  for (const auto& name : list_tiny_vit_names()) {
    EXPECT_EQ(to_original_sam_name("vision_encoder." + name), "image_encoder." + name);
  }
}

}  // namespace
}  // namespace vlmtrain::models
