#pragma once

#include <nlohmann/json_fwd.hpp>

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/processing/preprocessor_config.h"
#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/image/size.h"
#include "vlmtrain/image/video.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/models/synthetic_sample.h"
#include "vlmtrain/nn/weights/weight_settings.h"

namespace vlmtrain::nn {
struct ParameterSettings;  // nn/weights/parameters.h
}  // namespace vlmtrain::nn

namespace vlmtrain::models {

class VisionLanguageModel;  // vlmtrain/models/model.h

/// A function that builds the model of the checkpoint in `folder`, whose config.json is `config`.
using BuildFunction = std::unique_ptr<VisionLanguageModel>(const nlohmann::json& config,
                                                           const std::filesystem::path& folder,
                                                           const nn::ParameterSettings& settings);
/// A function that implements models::assemble_checkpoint().
using AssembleFunction = AssemblyResult(const AssemblyOptions& options, const std::filesystem::path& out);

/// A model family: its model types and the functions that build its models and processors. In all
/// functions `config` is the content of `folder`/config.json. Functions throw UserError (kBadData)
/// for invalid files and nlohmann::json exceptions for values of unexpected types; call them within
/// rethrow_json_errors(). Optional members are null or empty if the family does not support them.
struct Family {
  std::vector<std::string_view> model_types;  ///< values of `model_type` in config.json
  /// Implements models::build_model(). `config` has passed the checks that all families share.
  BuildFunction* build;
  /// Implements models::load_processor() for a full checkpoint.
  std::unique_ptr<Processor> (*load_processor)(const nlohmann::json& config, const std::filesystem::path& folder,
                                               const ProcessorSettings& settings);
  /// Returns the sample sizes (pixels, tokens) of one image of `size` with its markers. Needs no
  /// tokenizer. `max_pixels` is ProcessorSettings::image_max_pixels. Null: the family takes no
  /// images.
  data::SampleShape (*compute_image_sample_shape)(const nlohmann::json& config, const std::filesystem::path& folder,
                                                  image::ImageSize size, std::optional<int64_t> max_pixels);
  /// Returns the maximum number of tokens of a sequence.
  ContextLength (*get_context_length)(const nlohmann::json& config, const std::filesystem::path& folder);
  /// Estimates the number of parameters from the config alone.
  double (*num_parameters)(const nlohmann::json& config, const std::filesystem::path& folder);
  /// Returns whether a config.json without `model_type` belongs to the family. Null: the family
  /// requires `model_type`.
  bool (*matches_config)(const nlohmann::json& config) = nullptr;
  /// Name of the family in errors about files without `model_type`; set together with
  /// matches_config.
  std::string_view config_description = {};
  /// Returns the sample sizes of a video with its markers. The video's fps may be 0 (unknown).
  /// Null: the family takes no videos.
  data::SampleShape (*compute_video_sample_shape)(const nlohmann::json& config, const std::filesystem::path& folder,
                                                  const image::VideoInfo& video,
                                                  const ProcessorSettings& settings) = nullptr;
  /// Returns the sample sizes of a volume resampled to `size` (in voxels; nullopt: the config's
  /// size) with values of `dtype`. Null: the family takes no volumes.
  data::SampleShape (*compute_volume_sample_shape)(const nlohmann::json& config, const std::filesystem::path& folder,
                                                   std::optional<std::array<int64_t, 3>> size,
                                                   at::ScalarType dtype) = nullptr;
  /// Returns the side of the mask encoder's square input in pixels: `requested_side` if given, else
  /// the config's. Null: the family predicts no masks.
  int64_t (*get_mask_side)(const nlohmann::json& config, const std::filesystem::path& folder,
                           std::optional<int64_t> requested_side) = nullptr;
  /// Implements models::assemble_checkpoint() for the family's presets. Null: its models cannot be
  /// assembled.
  AssembleFunction* assemble_checkpoint = nullptr;
  /// Returns the changes that make_processor_files() applies for `settings`. Null: the family's
  /// files store none of these settings.
  ProcessorOverrides (*make_processor_overrides)(const nlohmann::json& config, const std::filesystem::path& folder,
                                                 const ProcessorSettings& settings, bool has_videos) = nullptr;
  /// Similar model types that are not supported, and the reason for each.
  std::vector<std::pair<std::string_view, std::string_view>> unsupported_model_types = {};
  /// Modules that LoRA trains fully by default, and the component that freezes each.
  std::vector<std::pair<std::string_view, nn::Component>> default_modules_to_save = {};
};

/// Returns the family's name: its model types, else config_description.
std::string get_family_name(const Family& family);
/// Returns the names of all families, in the order of registration.
std::vector<std::string> list_family_names();

/// Returns the model types of families that take videos, separated by commas.
std::string format_video_model_types();
/// Returns the model types of families that take volumes, separated by commas.
std::string format_volume_model_types();

/// Returns the family of a checkpoint's config. Throws UserError (kBadData), which lists the
/// supported types.
const Family& find_family(const nlohmann::json& config, const std::filesystem::path& folder);

/// Returns the maximum number of positions of a model with RoPE scaling: the scaling factor times
/// the context length in pretraining, at least `positions`, the value of max_position_embeddings.
/// Checkpoints store either the extended or the original length in max_position_embeddings, so the
/// larger interpretation is used. `config` is the content of config.json; the language model's
/// settings may be in a section of it.
int64_t compute_extended_context(const nlohmann::json& config, int64_t positions);

/// Returns models::read_context_length() of the checkpoint in `folder`, whose config.json has the
/// content `config`.
ContextLength read_context_length(const nlohmann::json& config, const std::filesystem::path& folder);

// The functions of all families. In its folder, family.cpp defines make_family(), model.cpp build()
// (family.cpp if there is no model.cpp), and assemble.cpp assemble_checkpoint().
namespace brain_llava {
Family make_family();
BuildFunction build;
/// Throws UserError (kUsage) also if `options` has a mask model.
AssembleFunction assemble_checkpoint;
}  // namespace brain_llava
namespace causal_lm {
Family make_family();
BuildFunction build;
}  // namespace causal_lm
namespace gemma3 {
Family make_family();
BuildFunction build;
}  // namespace gemma3
namespace gemma4 {
Family make_family();
BuildFunction build;
}  // namespace gemma4
namespace idefics3 {
Family make_family();
BuildFunction build;
/// Returns the family of SmolVLM: the model of Idefics3 under its later name.
Family make_smolvlm_family();
}  // namespace idefics3
namespace internvl {
Family make_family();
BuildFunction build;
}  // namespace internvl
namespace llava {
Family make_family();
BuildFunction build;
}  // namespace llava
namespace nanovlm {
Family make_family();
BuildFunction build;
}  // namespace nanovlm
namespace prs_med {
Family make_family();
BuildFunction build;
/// Throws UserError (kUsage) also if `options` has a volume tower.
AssembleFunction assemble_checkpoint;
}  // namespace prs_med
namespace qwen2_vl {
Family make_family();
BuildFunction build;
}  // namespace qwen2_vl
namespace qwen3_vl {
Family make_family();
BuildFunction build;
}  // namespace qwen3_vl

}  // namespace vlmtrain::models
