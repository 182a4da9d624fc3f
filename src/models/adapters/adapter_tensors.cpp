#include "models/adapters/adapter_tensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "models/adapters/adapter_layout.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::models {

namespace {

bool is_low_rank_tensor(std::string_view name) {
  return name.ends_with(kLoraA) || name.ends_with(kLoraB) || name.ends_with(kMagnitude);
}

}  // namespace

AdapterTensors::AdapterTensors(const std::filesystem::path& folder, const AdapterModules* modules)
    : file_(open_adapter(folder)) {
  refuse_empty();
  std::set<std::string> adapters;
  for (const auto& stored_name : file_.names()) {
    AdapterTensorName parsed = parse_adapter_tensor_name(stored_name);
    if (!parsed.adapter_name.empty()) adapters.insert(parsed.adapter_name);
    std::string name = modules != nullptr ? modules->resolve(parsed.path) : std::move(parsed.path);
    const auto [it, is_new] = stored_names_.emplace(name, stored_name);
    if (!is_new && adapters.size() <= 1) {
      throw data_error("{}: {} and {} are for the same parameter, {}; keep the one that was trained",
                       file_.path().string(), it->second, stored_name, name);
    }
    if (is_new) names_.push_back(std::move(name));
  }
  if (adapters.size() > 1) {
    throw data_error(
        "{}: holds several adapters ({}); save the one to use by itself, with peft's save_pretrained and "
        "selected_adapters",
        file_.path().string(), fmt::join(adapters, ", "));
  }
}

void AdapterTensors::refuse_empty() const {
  std::vector<std::string> empty;
  for (const auto& name : file_.names()) {
    if (std::ranges::count(file_.info(name).shape, 0) > 0) empty.push_back(name);
  }
  if (empty.empty()) return;
  throw data_error(
      "{}: {} of {} tensors are empty, such as {}: DeepSpeed ZeRO-3 (or FSDP) had the values in other places when it "
      "was saved; save it again with the weights gathered (stage3_gather_16bit_weights_on_model_save), or convert "
      "the training checkpoint with zero_to_fp32.py",
      file_.path().string(), empty.size(), file_.names().size(), empty.front());
}

std::vector<std::string> AdapterTensors::adapted_paths() const {
  const std::string end = fmt::format(".{}", kLoraA);
  std::vector<std::string> paths;
  for (const auto& name : names_) {
    if (name.ends_with(end)) paths.push_back(name.substr(0, name.size() - end.size()));
  }
  return paths;
}

std::vector<std::string> AdapterTensors::full_tensors() const {
  std::vector<std::string> full;
  std::ranges::copy_if(names_, std::back_inserter(full),
                       [](const std::string& name) { return !is_low_rank_tensor(name); });
  return full;
}

}  // namespace vlmtrain::models
