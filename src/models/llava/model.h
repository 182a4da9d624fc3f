#pragma once

#include <span>
#include <string>
#include <string_view>

#include "models/checkpoints/tensor_names.h"
#include "models/llava/config.h"
#include "models/network/llama.h"
#include "vlmtrain/image/normalize.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models::llava {

/// Where the modules stand in the tree of parameter names: for the Hugging Face layout as transformers 5 names its
/// modules, for the original one as LLaVA's code does.
struct ModuleNames {
  std::string_view vision_tower, projector_1, projector_2, language_model, output;
};
const ModuleNames& get_module_names(Layout layout);

/// How a checkpoint with these tensors spells the parameters' names. Of the Hugging Face layout there are
/// `language_model.model.layers…` and `model.language_model.layers…`, `vision_tower.vision_model.encoder…` and the same
/// without `vision_model`, and more.
StateDictKeyMap make_key_map(Layout layout, std::span<const std::string> tensors);

/// What goes through a projector.
struct ProjectorConfig {
  int64_t vision = 0;  ///< width of the tower
  int64_t text = 0;
  Activation activation = Activation::kGelu;
  bool bias = true;
};

/// Two Linears with an activation between them.
class Projector {
 public:
  Projector(const nn::ParameterScope& first, const nn::ParameterScope& second, const ProjectorConfig& config);
  /// [rows, vision hidden] → [rows, text hidden]
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  Activation activation_;
  nn::Linear first_, second_;
};

/// What a checkpoint's folder says of its model.
struct ModelSpec {
  Config config;
  StateDictKeyMap key_map;  ///< how the checkpoint spells the parameters
  bool has_external_tower;  ///< its vision tower lies in config.tower_folder
  image::Normalization normalization;

  /// `config_json` is the content of `folder`/config.json.
  static ModelSpec read(const nlohmann::json& config_json, const std::filesystem::path& folder);
};

/// Vision transformer, projector and text model.
class Model : public VisionLanguageModel {
 public:
  Model(ModelSpec source, const nn::ParameterSettings& settings);

  ImageFeatures get_image_features(const VisionInput& vision, bool with_dense) const override;
  ModelOutput hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                            const OutputRequest& request, nn::KeyValueCache* cache) const override;
  const at::Tensor& output_weight() const override { return text_.output_weight(); }
  int64_t vision_blocks() const override { return tower_.blocks(); }
  int64_t language_blocks() const override { return text_.blocks(); }
  std::string checkpoint_name(const std::string& parameter) const override {
    return source_.key_map.to_checkpoint_key(parameter);
  }
  std::optional<ExternalWeight> external_weight(const std::string& parameter) const override;
  void complete_config(nlohmann::ordered_json& config) const override;

 protected:
  const Config& config() const { return source_.config; }
  /// Of recompute().vision, those of the vision tower.
  virtual int64_t recomputed_tower_blocks() const { return recompute().vision; }

 private:
  ModelSpec source_;
  VisionTransformer tower_;
  Projector projector_;
  CausalLlama text_;
};

}  // namespace vlmtrain::models::llava
