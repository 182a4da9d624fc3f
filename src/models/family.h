#pragma once

#include <c10/core/ScalarType.h>
#include <nlohmann/json.hpp>

#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/processing/processor_changes.h"
#include "vlmtrain/data/shape.h"
#include "vlmtrain/image/decode.h"
#include "vlmtrain/image/video.h"
#include "vlmtrain/models/assemble.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/models/synthetic_sample.h"

namespace vlmtrain::models {

/// What a family of models has to offer. `config` is the content of `folder`/config.json.
struct Family {
  std::vector<std::string_view> model_types;  ///< values of config.json's `model_type`
  std::unique_ptr<VisionLanguageModel> (*build)(const nlohmann::json& config, const std::filesystem::path& folder,
                                                const nn::ParameterSettings& settings);
  std::unique_ptr<Processor> (*load_processor)(const nlohmann::json& config, const std::filesystem::path& folder,
                                               const ProcessorSettings& settings);
  /// What one image of this size becomes, the marks around it included; null: the family takes no pictures. Needs no
  /// tokenizer (idefics3/image_tokens.h).
  data::SampleShape (*image_shape)(const nlohmann::json& config, const std::filesystem::path& folder,
                                   image::ImageSize size, std::optional<int64_t> max_pixels);
  /// How many tokens a sequence may have.
  ContextLength (*context_length)(const nlohmann::json& config, const std::filesystem::path& folder);
  /// About how many parameters the model has, from its config alone.
  double (*num_parameters)(const nlohmann::json& config, const std::filesystem::path& folder);
  /// Whether a config.json that has no `model_type` is of this family, and what an error calls such a one.
  bool (*matches_config)(const nlohmann::json& config) = nullptr;
  std::string_view config_name = {};
  /// What a video becomes, the marks around it included; null: the family takes none. `fps` of the video may be 0.
  data::SampleShape (*video_shape)(const nlohmann::json& config, const std::filesystem::path& folder,
                                   const image::VideoInfo& video, const ProcessorSettings& settings) = nullptr;
  /// What one volume becomes, brought to `size` (nothing: what the model was made for) in values of `dtype`; null: the
  /// family takes none.
  data::SampleShape (*volume_shape)(const nlohmann::json& config, const std::filesystem::path& folder,
                                    std::optional<std::array<int64_t, 3>> size, at::ScalarType dtype) = nullptr;
  /// The side of the squares that masks are drawn in, where `requested_side` is asked for; null: the family draws none.
  int64_t (*mask_side)(const nlohmann::json& config, const std::filesystem::path& folder,
                       std::optional<int64_t> requested_side) = nullptr;
  /// models::assemble() of the family's presets; null: they are not put together.
  AssemblyResult (*assemble)(const AssemblyOptions& parts, const std::filesystem::path& out) = nullptr;
  /// What the data section of a run changes in the files of the processor (processing/processor_files.cpp); null:
  /// nothing, since the files of the family have no such setting.
  ProcessorChanges (*make_processor_changes)(const nlohmann::json& config, const std::filesystem::path& folder,
                                             const ProcessorSettings& settings, bool has_videos) = nullptr;
  /// Model types near to the family's that it is not, and what an error says of such a one.
  std::vector<std::pair<std::string_view, std::string_view>> unsupported_types = {};
  /// Modules that LoRA trains whole beside its adapters, and what freezes them: nothing that was learnt before.
  std::vector<std::pair<std::string_view, nn::Component>> default_modules_to_save = {};
};

/// What people know the family by: its model types, else what an error calls its config.json.
std::string get_family_name(const Family& family);
/// Of all families, in the order of the registry.
std::vector<std::string> list_family_names();

/// The model types of the families that take videos, one after another.
std::string list_video_families();
/// The same of those that take volumes.
std::string list_volume_families();

/// The family of a checkpoint's config. Throws UserError (kBadData) that names the known ones.
const Family& find_family(const nlohmann::json& config, const std::filesystem::path& folder);

// The factories of all families, each defined in the family.cpp of its folder.
namespace brain_llava {
Family make_family();
}
namespace gemma3 {
Family make_family();
}
namespace idefics3 {
Family make_family();
/// Returns the family of SmolVLM: the model of Idefics3 under its later name.
Family make_smolvlm_family();
}  // namespace idefics3
namespace internvl {
Family make_family();
}
namespace llava {
Family make_family();
}
namespace nanovlm {
Family make_family();
}
namespace prs_med {
Family make_family();
}
namespace qwen2_vl {
Family make_family();
}
namespace qwen3_vl {
Family make_family();
}

}  // namespace vlmtrain::models
