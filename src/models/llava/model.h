#pragma once

#include <span>
#include <string>
#include <string_view>

#include "models/checkpoints/tensor_names.h"
#include "models/llava/family.h"
#include "models/network/llama.h"
#include "models/network/vision_transformer.h"
#include "vlmtrain/image/pixel_transforms.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models::llava {

/// Names of the modules, the prefixes of parameter names: transformers 5's names for the Hugging
/// Face format, the names of LLaVA's code for the original format.
struct ModuleNames {
  std::string_view vision_tower, projector_1, projector_2, language_model, output;
};
/// Returns the module names of a format.
const ModuleNames& get_module_names(CheckpointFormat checkpoint_format);

/// Returns the map from parameter names to the keys of a checkpoint with these tensors. Keys of the
/// Hugging Face format are `language_model.model.layers…` or `model.language_model.layers…`, and
/// `vision_tower.…` with or without `vision_model`. Keys of the original format equal the parameter
/// names.
StateDictKeyMap make_key_map(CheckpointFormat checkpoint_format, std::span<const std::string> tensors);

/// Sizes and activation of a projector.
struct ProjectorConfig {
  int64_t vision = 0;  ///< hidden size of the vision tower
  int64_t text = 0;    ///< hidden size of the text model
  Activation activation = Activation::kGelu;
  bool bias = true;
};

/// Projector of two Linears with an activation between them.
class Projector {
 public:
  Projector(const nn::ParameterScope& first, const nn::ParameterScope& second, const ProjectorConfig& config);
  /// Maps x [rows, vision hidden] → [rows, text hidden].
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  Activation activation_;
  nn::Linear linear_1_, linear_2_;
};

/// Model description read from a checkpoint's folder.
struct ModelSpec {
  Config config;
  StateDictKeyMap key_map;  ///< parameter names to checkpoint keys
  bool has_external_tower;  ///< the vision tower's weights are in config.tower_folder, not in the checkpoint
  image::Normalization normalization;

  /// Reads the checkpoint in `folder`, without weights. `config_json` is the content of its
  /// config.json. Throws UserError (kBadData).
  static ModelSpec read(const nlohmann::json& config_json, const std::filesystem::path& folder);
};

/// LLaVA: vision transformer, projector and text model. Parameter names are those of
/// get_module_names().
class Model : public VisionLanguageModel {
 public:
  Model(ModelSpec spec, const nn::ParameterSettings& settings);

  ImageFeatures get_image_features(const VisionInput& vision, bool with_patch_features) const override;
  ModelOutput compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                    const OutputRequest& request, nn::GenerationCache* cache) const override;
  nn::OutputProjection output_projection() const override { return text_.output_projection(); }
  int64_t num_vision_blocks() const override { return tower_.num_blocks(); }
  int64_t num_language_blocks() const override { return text_.num_blocks(); }
  std::string get_checkpoint_tensor_name(const std::string& parameter) const override {
    return spec_.key_map.to_checkpoint_key(parameter);
  }
  std::optional<ExternalWeight> find_external_weight(const std::string& parameter) const override;
  void add_saved_settings(nlohmann::ordered_json& config) const override;

 protected:
  const Config& config() const { return spec_.config; }
  /// Returns how many of the recompute_block_counts().vision recomputed blocks belong to the vision
  /// tower. Subclasses with another encoder override it.
  virtual int64_t count_recomputed_tower_blocks() const { return recompute_block_counts().vision; }

 private:
  ModelSpec spec_;
  VisionTransformer tower_;
  Projector projector_;
  CausalLlama text_;
};

}  // namespace vlmtrain::models::llava
