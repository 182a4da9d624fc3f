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
    weights.push_back(entry.weight);
    masters.push_back(entry.master);
  }
  if (!weights.empty()) at::_foreach_copy_(weights, masters);
}

std::string AdamW::saved_name(const StateTensor& tensor) const {
  return tensor.is_shared && !shard().is_all() ? piece_name(tensor.name, tensor.first) : tensor.name;
}

AdamW::StateTensor AdamW::master_of(const Entry& entry) const {
  return {.name = "master." + entry.name,
          .values = entry.master,
          .first = entry.piece.first,
          .total = entry.parameter.numel(),
          .is_shared = true};
}

std::vector<AdamW::StateTensor> AdamW::state_tensors() const {
  std::vector<StateTensor> tensors;
  const auto add = [&tensors](const std::string& name, const at::Tensor& values) {
    tensors.push_back({.name = name, .values = values, .total = values.numel()});
  };
  add("steps", steps_);
  if (loss_scale_) {
    for (const auto& [name, values] : loss_scale_->state()) add(name, values);
  }
  if (updates_.defined()) add("updates", updates_);
  for (const auto& entry : entries_) {
    if (!entry.is_here()) continue;
    if (!entry.is_compressed()) {
      for (const auto& [prefix, values] :
           {std::pair{"first_moment.", entry.first_moment}, {"second_moment.", entry.second_moment}}) {
        StateTensor moment = master_of(entry);
        moment.name = prefix + entry.name;
        moment.values = values;
        tensors.push_back(std::move(moment));
      }
    }
    if (entry.has_master()) tensors.push_back(master_of(entry));
  }
  for (const auto& compressed : compressed_) {
    for (size_t i = 0; i < compressed.entries.size(); ++i) {
      const Entry& entry = entries_[compressed.entries[i]];
      if (!entry.is_here()) continue;
      for (auto& [prefix, values] : compressed.states->state(i)) {
        // What a block of the parameter's elements has of it: a value for each, or one.
        const int64_t of_block = values.dim() == 2 ? values.size(1) : 1;
        tensors.push_back({.name = fmt::format("{}.{}", prefix, entry.name),
                           .values = values,
                           .first = entry.piece.first / kShardAlignment * of_block,
                           .total = CompressedStates::blocks_of(entry.parameter.numel()) * of_block,
                           .is_shared = true});
      }
    }
  }
  return tensors;
}

std::vector<std::pair<std::string, at::Tensor>> AdamW::state() const {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& tensor : state_tensors()) {
    if (tensor.is_shared || shard().rank == 0) tensors.emplace_back(saved_name(tensor), tensor.values);
  }
  return tensors;
}

std::vector<std::pair<std::string, at::Tensor>> AdamW::masters() const {
  std::vector<std::pair<std::string, at::Tensor>> masters;
  for (const auto& entry : entries_) {
    if (!entry.is_here()) continue;
    masters.emplace_back(shard().is_all() ? entry.name : piece_name(entry.name, entry.piece.first), entry.master);
  }
  return masters;
}

void AdamW::load_state(const SavedPieces& saved, const std::string& source) {
  const at::NoGradGuard no_gradients;
  auto own = state_tensors();
  for (const auto& entry : entries_) {
    if (entry.is_here() && !entry.has_master() && saved.contains("master." + entry.name)) {
      own.push_back(master_of(entry));
    }
  }
  const auto refuse = [&source](const std::string& name, std::string_view problem) {
    throw data_error(
        "{}: {} {}; the run's model, frozen parts, precision and optimizer states must be those that the checkpoint "
        "was made with",
        source, name, problem);
  };
  std::set<std::string> own_names;
  for (const auto& tensor : own) {
    own_names.insert(tensor.name);
    if (!saved.contains(tensor.name)) refuse(tensor.name, "is missing");
    if (const at::Tensor* const whole = saved.whole(tensor.name)) {
      const bool is_flat = tensor.is_shared && !shard().is_all();
      if (is_flat ? whole->numel() != tensor.total : whole->sizes() != tensor.values.sizes()) {
        refuse(tensor.name, "has another shape");
      }
      if (whole->scalar_type() != tensor.values.scalar_type()) refuse(tensor.name, "has another type");
    }
  }
  const auto is_elsewhere = [&](const std::string& name) {
    return !shard().is_all() && std::ranges::any_of(entries_, [&](const Entry& entry) {
      return !entry.is_here() && name.ends_with("." + entry.name);
    });
  };
  for (const auto& name : saved.names()) {
    if (!own_names.contains(name) && !is_elsewhere(name)) refuse(name, "is not one of this run's");
  }
  for (const auto& tensor : own) {
    const auto values =
        saved.find(tensor.name, tensor.first, tensor.values.numel(), tensor.total, tensor.values.scalar_type());
    if (!values) refuse(tensor.name, "is not all there, or has another type");
    tensor.values.copy_(values->view(tensor.values.sizes()));
  }
  refresh_weights();
}

CarriedStates AdamW::carry_state(const nn::ParameterStore& store, const SavedPieces& saved, const std::string& source) {
  const at::NoGradGuard no_gradients;
  std::map<std::string, int64_t> places;  // in the saved steps
  for (const auto& parameter : store.all()) {
    if (saved.contains("first_moment." + parameter.name)) places.emplace(parameter.name, std::ssize(places));
  }
  const at::Tensor* const steps = saved.whole("steps");
  if (steps == nullptr || steps->sizes() != at::IntArrayRef{std::ssize(places)}) {
    throw data_error("{}: its steps are not those of its {} moments; copy the checkpoint again", source, places.size());
  }
  const auto fitting = [&](const StateTensor& tensor) -> std::optional<at::Tensor> {
    const at::Tensor* const whole = saved.whole(tensor.name);
    if (whole != nullptr && shard().is_all() && whole->sizes() != tensor.values.sizes()) return std::nullopt;
    return saved.find(tensor.name, tensor.first, tensor.values.numel(), tensor.total, tensor.values.scalar_type());
  };
  // Of what other ranks hold, whether they will find it: the steps are all ranks' own.
  const auto is_found_elsewhere = [&](const Entry& entry) {
    const at::ScalarType compressed = settings_.states == OptimizerStates::kBf16 ? at::kBFloat16 : at::kByte;
    const int64_t elements = entry.parameter.numel();
    return entry.is_compressed() ? saved.find("first_moment." + entry.name, 0, 1,
                                              CompressedStates::blocks_of(elements) * kBlockElements, compressed)
                                 : saved.find("first_moment." + entry.name, 0, 1, elements, at::kFloat);
  };
  const auto take = [](const at::Tensor& own, const at::Tensor& found) { own.copy_(found.view(own.sizes())); };
  std::map<std::string, std::vector<std::pair<at::Tensor, std::optional<at::Tensor>>>> moments;  // by parameter
  for (const auto& tensor : state_tensors()) {
    auto found = fitting(tensor);
    const size_t dot = tensor.name.find('.');
    if (tensor.is_shared) {
      if (!tensor.name.starts_with("master.")) {
        moments[tensor.name.substr(dot + 1)].emplace_back(tensor.values, std::move(found));
      }
    } else if (found && tensor.name != "steps" && (tensor.name == "updates" || settings_.loss_scale->dynamic)) {
      take(tensor.values, *found);
    }
  }
  CarriedStates result;
  for (const auto& entry : entries_) {
    const auto place = places.find(entry.name);
    bool goes_on = place != places.end();
    if (entry.is_here()) {
      if (const auto master = fitting(master_of(entry))) take(entry.master, *master);
      const auto& own = moments.at(entry.name);
      goes_on = goes_on && std::ranges::all_of(own, [](const auto& pair) { return pair.second.has_value(); });
      for (size_t i = 0; goes_on && i < own.size(); ++i) take(own[i].first, *own[i].second);
    } else {
      goes_on = goes_on && is_found_elsewhere(entry);
    }
    if (!goes_on) {
      ++result.anew;
      continue;
    }
    entry.steps.copy_(steps->select(0, place->second));
    ++result.carried;
  }
  refresh_weights();
  return result;
}

}  // namespace vlmtrain::engine
