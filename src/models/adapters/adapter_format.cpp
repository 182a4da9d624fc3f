#include "models/adapters/adapter_format.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models {

namespace {

/// Prefixes of module paths in older transformers releases and in adapters of the text model alone,
/// with the current prefixes, as in conversion_mapping.py of transformers 5.24. Up to 4.51, LLaVA,
/// Gemma 3 and InternVL had the text model at the top level, and Qwen2-VL and Qwen2.5-VL used the
/// names of the text model alone. Up to 5.0, vision towers had a `vision_model` component.
constexpr std::array<std::pair<std::string_view, std::string_view>, 12> kLegacyModulePrefixes{{
    {"language_model.lm_head", "lm_head"},
    {"model.language_model.lm_head", "lm_head"},
    {"model.language_model.model.", "model.language_model."},
    {"language_model.model.", "model.language_model."},
    {"language_model.", "model.language_model."},
    {"model.vision_tower.vision_model.", "model.vision_tower."},
    {"vision_tower.vision_model.", "model.vision_tower."},
    {"vision_tower.", "model.vision_tower."},
    {"multi_modal_projector.", "model.multi_modal_projector."},
    {"visual.", "model.visual."},
    {"model.", "model.language_model."},
    {"model.", "model.text_model."},
}};

constexpr std::array<std::string_view, 4> kWrapperModulePrefixes{"module.", "_fsdp_wrapped_module.",
                                                                 "_checkpoint_wrapped_module.", "_orig_mod."};

/// Removes all occurrences of a component from a path.
void remove_path_component(std::string& path, std::string_view name) {
  for (size_t pos = path.find(name); pos != std::string::npos; pos = path.find(name, pos)) {
    if (pos == 0 || path[pos - 1] == '.') {
      path.erase(pos, name.size());
    } else {
      ++pos;
    }
  }
}

/// Removes the adapter's name after `marker`: `lora_A.default.weight` becomes `lora_A.weight`.
void remove_adapter_name(AdapterTensorName& name, std::string_view marker) {
  const size_t pos = name.path.find(marker);
  if (pos == std::string::npos) return;
  const size_t begin = pos + marker.size();
  const size_t end = name.path.find('.', begin);
  if (end == std::string::npos) {
    // DoRA's vector ends with `weight` in some peft releases.
    if (marker != ".lora_magnitude_vector.") return;
    if (name.path.substr(begin) != "weight") name.adapter_name = name.path.substr(begin);
    name.path.resize(begin - 1);
    return;
  }
  name.adapter_name = name.path.substr(begin, end - begin);
  if (marker == ".lora_magnitude_vector.") {
    name.path.resize(begin - 1);
  } else if (marker == ".modules_to_save.") {
    name.path.erase(pos, end - pos);
  } else {
    name.path.erase(begin, end + 1 - begin);
  }
}

std::string_view get_module_path(std::string_view path) {
  for (const std::string_view marker : {".lora_A.", ".lora_B.", ".lora_magnitude_vector"}) {
    if (const size_t pos = path.find(marker); pos != std::string_view::npos) return path.substr(0, pos);
  }
  return path.substr(0, path.rfind('.'));
}

}  // namespace

UserError make_missing_adapter_error(const std::filesystem::path& file) {
  return data_error("{}: does not exist; give the folder of an adapter in PEFT's layout", file.string());
}

io::SafetensorsFile open_adapter_weights(const std::filesystem::path& folder) {
  const auto path = folder / kAdapterWeightsName;
  if (!std::filesystem::exists(path)) {
    if (std::filesystem::exists(folder / "adapter_model.bin")) {
      throw data_error(
          "{}: has only pickled tensors (adapter_model.bin), which are not supported; save it again with peft",
          folder.string());
    }
    throw make_missing_adapter_error(path);
  }
  return io::SafetensorsFile(path);
}

AdapterTensorName parse_adapter_tensor_name(std::string_view name) {
  AdapterTensorName parsed_name{.path = std::string(name), .adapter_name = {}};
  for (const auto wrapper : kWrapperModulePrefixes) remove_path_component(parsed_name.path, wrapper);
  if (const size_t pos = parsed_name.path.find(kAdapterTensorPrefix); pos != std::string::npos) {
    parsed_name.path.erase(0, pos + kAdapterTensorPrefix.size());
  }
  for (const auto* marker : {".lora_A.", ".lora_B.", ".lora_magnitude_vector.", ".modules_to_save."}) {
    remove_adapter_name(parsed_name, marker);
  }
  return parsed_name;
}

AdaptableModules::AdaptableModules(const VisionLanguageModel& model, std::string_view output) {
  for (const auto& parameter : model.parameters().all()) {
    if (parameter.is_adapter) continue;
    // modules_to_save may name any parent module.
    for (size_t end = parameter.name.rfind('.'); end != std::string::npos && end > 0;
         end = parameter.name.rfind('.', end - 1)) {
      if (!module_paths_.insert(parameter.name.substr(0, end)).second) break;
    }
    module_paths_.insert(parameter.name);
  }
  if (!output.empty()) module_paths_.emplace(output);
  for (const auto& linear : model.parameters().linears()) linears_.push_back(linear.path);
}

bool AdaptableModules::contains(std::string_view path) const {
  return module_paths_.contains(path) || module_paths_.contains(get_module_path(path));
}

std::string AdaptableModules::resolve_module_path(const std::string& path) const {
  if (contains(path)) return path;
  for (const auto& [legacy, current] : kLegacyModulePrefixes) {
    if (!path.starts_with(legacy)) continue;
    std::string updated_path = std::string(current) + path.substr(legacy.size());
    if (contains(updated_path)) return updated_path;
  }
  return path;
}

AdapterTensors::AdapterTensors(const std::filesystem::path& folder, const AdaptableModules* modules)
    : file_(open_adapter_weights(folder)) {
  reject_empty_tensors();
  std::set<std::string> adapters;
  for (const auto& stored_name : file_.names()) {
    AdapterTensorName parsed_name = parse_adapter_tensor_name(stored_name);
    if (!parsed_name.adapter_name.empty()) adapters.insert(parsed_name.adapter_name);
    std::string name =
        modules != nullptr ? modules->resolve_module_path(parsed_name.path) : std::move(parsed_name.path);
    const auto [it, is_new] = stored_names_.emplace(name, stored_name);
    if (!is_new && adapters.size() <= 1) {
      throw data_error("{}: {} and {} are for the same parameter, {}; keep the one that was trained",
                       file_.path().string(), it->second, stored_name, name);
    }
    if (is_new) names_.push_back(std::move(name));
  }
  if (adapters.size() > 1) {
    throw data_error(
        "{}: contains several adapters ({}); save one of them separately with peft's save_pretrained and "
        "selected_adapters",
        file_.path().string(), fmt::join(adapters, ", "));
  }
}

void AdapterTensors::reject_empty_tensors() const {
  std::vector<std::string> empty_tensors;
  for (const auto& name : file_.names()) {
    if (std::ranges::count(file_.info(name).shape, 0) > 0) empty_tensors.push_back(name);
  }
  if (empty_tensors.empty()) return;
  throw data_error(
      "{}: {} of {} tensors are empty, such as {}, since DeepSpeed ZeRO-3 or FSDP had sharded them; save it with "
      "stage3_gather_16bit_weights_on_model_save, or convert the checkpoint with zero_to_fp32.py",
      file_.path().string(), empty_tensors.size(), file_.names().size(), empty_tensors.front());
}

at::Tensor AdapterTensors::tensor(const std::string& name) const {
  return file_.tensor(stored_name(name));
}

std::vector<std::string> AdapterTensors::list_adapted_module_paths() const {
  const std::string end = fmt::format(".{}", kLoraASuffix);
  std::vector<std::string> paths;
  for (const auto& name : names_) {
    if (name.ends_with(end)) paths.push_back(name.substr(0, name.size() - end.size()));
  }
  return paths;
}

}  // namespace vlmtrain::models
