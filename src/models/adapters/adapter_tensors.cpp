#include "models/adapters/adapter_tensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "models/adapters/adapter_layout.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::models {

namespace {

bool is_of_low_rank(std::string_view name) {
  return name.ends_with(kLoraA) || name.ends_with(kLoraB) || name.ends_with(kMagnitude);
}

}  // namespace

AdapterTensors::AdapterTensors(const std::filesystem::path& folder, const AdapterModules* modules)
    : file_(open_adapter(folder)) {
  refuse_empty();
  std::set<std::string> adapters;
  for (const auto& stored : file_.names()) {
    AdapterTensorName plain = plain_adapter_name(stored);
    if (!plain.adapter_name.empty()) adapters.insert(plain.adapter_name);
    std::string name = modules != nullptr ? modules->resolve(plain.path) : std::move(plain.path);
    const auto [place, is_new] = stored_.emplace(name, stored);
    if (!is_new && adapters.size() <= 1) {
      throw data_error("{}: {} and {} are for the same parameter, {}; keep the one that was trained",
                       file_.path().string(), place->second, stored, name);
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

std::vector<std::string> AdapterTensors::whole_tensors() const {
  std::vector<std::string> whole;
  std::ranges::copy_if(names_, std::back_inserter(whole),
                       [](const std::string& name) { return !is_of_low_rank(name); });
  return whole;
}

}  // namespace vlmtrain::models
