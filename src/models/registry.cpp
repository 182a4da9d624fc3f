#include "models/registry.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "models/brain_llava/family.h"
#include "models/gemma3/family.h"
#include "models/idefics3/family.h"
#include "models/internvl/family.h"
#include "models/llava/family.h"
#include "models/nanovlm/family.h"
#include "models/prs_med/family.h"
#include "models/qwen2_vl/family.h"
#include "models/qwen3_vl/family.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models {

namespace {

/// A new family is a folder and a line here.
const std::vector<Family>& families() {
  static const std::vector<Family> table{
      brain_llava::family(), gemma3::family(),  idefics3::family(), idefics3::smolvlm_family(), internvl::family(),
      llava::family(),       nanovlm::family(), prs_med::family(),  qwen2_vl::family(),         qwen3_vl::family()};
  return table;
}

/// The model types of the families that `takes` is true of.
template <class Takes>
std::string types_of_families(const Takes& takes) {
  std::vector<std::string_view> types;
  for (const Family& family : families()) {
    if (takes(family)) types.insert(types.end(), family.model_types.begin(), family.model_types.end());
  }
  return fmt::format("{}", fmt::join(types, ", "));
}

const Family& family_without_type(const nlohmann::json& config, const std::string& source) {
  std::vector<std::string_view> known;
  for (const Family& family : families()) {
    if (family.is_config == nullptr) continue;
    if (family.is_config(config)) return family;
    known.push_back(family.config_name);
  }
  throw data_error("{}: the key \"model_type\" is missing; known without it: {}", source, fmt::join(known, ", "));
}

}  // namespace

std::string name_of(const Family& family) {
  if (family.model_types.empty()) return std::string(family.config_name);
  return fmt::format("{}", fmt::join(family.model_types, ", "));
}

std::vector<std::string> names_of_families() {
  std::vector<std::string> names;
  for (const Family& family : families()) names.push_back(name_of(family));
  return names;
}

std::string families_with_videos() {
  return types_of_families([](const Family& family) { return family.video_shape != nullptr; });
}

std::string families_with_volumes() {
  return types_of_families([](const Family& family) { return family.volume_shape != nullptr; });
}

const Family& family_of(const nlohmann::json& config, const std::filesystem::path& folder) {
  const std::string source = (folder / "config.json").string();
  if (config.is_object() && !config.contains("model_type")) return family_without_type(config, source);
  const auto type = io::get<std::string>(config, "model_type", source);
  std::vector<std::string_view> known;
  for (const Family& family : families()) {
    if (std::find(family.model_types.begin(), family.model_types.end(), type) != family.model_types.end())
      return family;
    known.insert(known.end(), family.model_types.begin(), family.model_types.end());
    if (family.is_config != nullptr) known.push_back(family.config_name);
    for (const auto& [refused, reason] : family.not_supported) {
      if (refused == type) throw data_error("{}: model_type {} is not supported: {}", source, type, reason);
    }
  }
  throw data_error("{}: model_type {} is not a family that vlmtrain knows; the known ones are {}", source, type,
                   fmt::join(known, ", "));
}

}  // namespace vlmtrain::models
