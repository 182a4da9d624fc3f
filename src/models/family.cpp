#include "models/family.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models {

namespace {

/// Returns all families. Register a new one here.
const std::vector<Family>& get_families() {
  static const std::vector<Family> table{
      brain_llava::make_family(),      causal_lm::make_family(), gemma3::make_family(),  idefics3::make_family(),
      idefics3::make_smolvlm_family(), internvl::make_family(),  llava::make_family(),   nanovlm::make_family(),
      prs_med::make_family(),          qwen2_vl::make_family(),  qwen3_vl::make_family()};
  return table;
}

/// Returns the model types of the families that satisfy `predicate`.
template <class Predicate>
std::string join_model_types(const Predicate& predicate) {
  std::vector<std::string_view> model_types;
  for (const Family& family : get_families()) {
    if (predicate(family)) model_types.insert(model_types.end(), family.model_types.begin(), family.model_types.end());
  }
  return fmt::format("{}", fmt::join(model_types, ", "));
}

const Family& find_family_without_type(const nlohmann::json& config, const std::string& source) {
  std::vector<std::string_view> family_descriptions;
  for (const Family& family : get_families()) {
    if (family.matches_config == nullptr) continue;
    if (family.matches_config(config)) return family;
    family_descriptions.push_back(family.config_description);
  }
  throw data_error("{}: the key \"model_type\" is missing; families that work without it: {}", source,
                   fmt::join(family_descriptions, ", "));
}

}  // namespace

std::string get_family_name(const Family& family) {
  if (family.model_types.empty()) return std::string(family.config_description);
  return fmt::format("{}", fmt::join(family.model_types, ", "));
}

std::vector<std::string> list_family_names() {
  std::vector<std::string> names;
  for (const Family& family : get_families()) names.push_back(get_family_name(family));
  return names;
}

std::string format_video_model_types() {
  return join_model_types([](const Family& family) { return family.compute_video_sample_shape != nullptr; });
}

std::string format_volume_model_types() {
  return join_model_types([](const Family& family) { return family.compute_volume_sample_shape != nullptr; });
}

const Family& find_family(const nlohmann::json& config, const std::filesystem::path& folder) {
  const std::string source = (folder / "config.json").string();
  if (config.is_object() && !config.contains("model_type")) return find_family_without_type(config, source);
  const auto type = io::get<std::string>(config, "model_type", source);
  std::vector<std::string_view> supported_families;
  for (const Family& family : get_families()) {
    if (std::find(family.model_types.begin(), family.model_types.end(), type) != family.model_types.end())
      return family;
    supported_families.insert(supported_families.end(), family.model_types.begin(), family.model_types.end());
    if (family.matches_config != nullptr) supported_families.push_back(family.config_description);
    for (const auto& [unsupported, reason] : family.unsupported_model_types) {
      if (unsupported == type) throw data_error("{}: model_type {} is not supported: {}", source, type, reason);
    }
  }
  throw data_error("{}: model_type {} is not supported; supported are {}", source, type,
                   fmt::join(supported_families, ", "));
}

}  // namespace vlmtrain::models
