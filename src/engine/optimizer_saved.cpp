#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>

#include "engine/compressed_states.h"
#include "engine/optimizer_entry.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::engine {

void AdamW::refresh_weights() {
  std::vector<at::Tensor> weights, masters;
  for (const auto& entry : entries_) {
    if (!entry.has_master()) continue;
    weights.push_back(entry.weight.detach());
    masters.push_back(entry.master);
  }
  if (!weights.empty()) at::_foreach_copy_(weights, masters);
}

std::vector<std::pair<std::string, at::Tensor>> AdamW::state() const {
  std::vector<std::pair<std::string, at::Tensor>> tensors{{"steps", steps_}};
  if (loss_scale_) std::ranges::move(loss_scale_->state(), std::back_inserter(tensors));
  if (updates_.defined()) tensors.emplace_back("updates", updates_);
  for (const auto& entry : entries_) {
    if (!entry.is_compressed()) {
      tensors.emplace_back("first_moment." + entry.name, entry.first_moment);
      tensors.emplace_back("second_moment." + entry.name, entry.second_moment);
    }
    if (entry.has_master()) tensors.emplace_back("master." + entry.name, entry.master);
  }
  for (const auto& compressed : compressed_) {
    for (size_t i = 0; i < compressed.entries.size(); ++i) {
      for (auto& [prefix, tensor] : compressed.states->state(i)) {
        tensors.emplace_back(fmt::format("{}.{}", prefix, entries_[compressed.entries[i]].name), tensor);
      }
    }
  }
  return tensors;
}

void AdamW::load_state(const std::map<std::string, at::Tensor>& saved, const std::string& source) {
  const at::NoGradGuard no_gradients;
  auto own = state();
  for (const auto& entry : entries_) {
    const std::string name = "master." + entry.name;
    if (!entry.has_master() && saved.contains(name)) own.emplace_back(name, entry.master);
  }
  const auto refuse = [&source](const std::string& name, std::string_view problem) {
    throw data_error(
        "{}: {} {}; the run's model, frozen parts, precision and optimizer states must be those that the checkpoint "
        "was made with",
        source, name, problem);
  };
  std::set<std::string_view> own_names;
  for (const auto& [name, tensor] : own) {
    own_names.insert(name);
    const auto found = saved.find(name);
    if (found == saved.end()) refuse(name, "is missing");
    if (found->second.sizes() != tensor.sizes()) refuse(name, "has another shape");
    if (found->second.scalar_type() != tensor.scalar_type()) refuse(name, "has another type");
  }
  for (const auto& [name, tensor] : saved) {
    if (!own_names.contains(name)) refuse(name, "is not one of this run's");
  }
  for (const auto& [name, tensor] : own) tensor.copy_(saved.at(name));
  refresh_weights();
}

CarriedStates AdamW::carry_state(const nn::ParameterStore& store, const std::map<std::string, at::Tensor>& saved,
                                 const std::string& source) {
  const at::NoGradGuard no_gradients;
  std::map<std::string, int64_t> places;  // in the saved steps
  for (const auto& parameter : store.all()) {
    if (saved.contains("first_moment." + parameter.name)) places.emplace(parameter.name, std::ssize(places));
  }
  const auto steps = saved.find("steps");
  if (steps == saved.end() || steps->second.sizes() != at::IntArrayRef{std::ssize(places)}) {
    throw data_error("{}: its steps are not those of its {} moments; copy the checkpoint again", source, places.size());
  }
  const auto fitting = [&saved](const std::string& name, const at::Tensor& tensor) -> const at::Tensor* {
    const auto found = saved.find(name);
    const bool fits = found != saved.end() && found->second.sizes() == tensor.sizes() &&
                      found->second.scalar_type() == tensor.scalar_type();
    return fits ? &found->second : nullptr;
  };
  std::map<std::string, std::vector<std::pair<at::Tensor, const at::Tensor*>>> moments;  // by parameter
  for (const auto& [name, tensor] : state()) {
    const at::Tensor* const found = fitting(name, tensor);
    const size_t dot = name.find('.');
    if (dot != std::string::npos) {
      if (!name.starts_with("master.")) moments[name.substr(dot + 1)].emplace_back(tensor, found);
    } else if (found != nullptr && name != "steps" && (name == "updates" || settings_.loss_scale->dynamic)) {
      tensor.copy_(*found);
    }
  }
  CarriedStates result;
  for (const auto& entry : entries_) {
    if (const auto* const master = fitting("master." + entry.name, entry.master)) entry.master.copy_(*master);
    const auto& own = moments.at(entry.name);
    const auto place = places.find(entry.name);
    if (place == places.end() || std::ranges::any_of(own, [](const auto& pair) { return pair.second == nullptr; })) {
      ++result.anew;
      continue;
    }
    for (const auto& [tensor, found] : own) tensor.copy_(*found);
    entry.steps.copy_(steps->second.select(0, place->second));
    ++result.carried;
  }
  refresh_weights();
  return result;
}

}  // namespace vlmtrain::engine
