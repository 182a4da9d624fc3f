#include "train/checkpoint_content.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "vlmtrain/io/json_text.h"
#include "vlmtrain/train/run_changes.h"

namespace vlmtrain::train {

namespace {

/// Copies of tensors in the host's memory, one of each.
class HostCopyCache {
 public:
  const at::Tensor& get(const at::Tensor& tensor) {
    auto& [original, copy] = copies_[tensor.unsafeGetTensorImpl()];
    if (!copy.defined()) {
      original = tensor;
      copy = tensor.detach().to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    }
    return copy;
  }

 private:
  struct Entry {
    at::Tensor original, copy;  // the first is kept so that its address stays its own
  };
  std::map<const at::TensorImpl*, Entry> copies_;
};

/// The optimizer's state, and the fp32 values of what is saved in another type, where the state does not have them.
/// `masters` may be pieces (engine/saved_pieces.h).
io::NamedTensors make_optimizer_tensors(const models::VisionLanguageModel& model, io::NamedTensors tensors,
                                        const io::NamedTensors& masters, const models::SaveOptions& save_settings) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) names.insert(name);
  std::map<std::string, const nn::Parameter*> parameters;
  for (const auto& parameter : model.parameters().all()) parameters.emplace(parameter.name, &parameter);
  for (const auto& [name, values] : masters) {
    const auto piece = engine::parse_shard_name(name);
    const nn::Parameter& parameter = *parameters.at(piece ? piece->first : name);
    if (names.contains("master." + name) || models::choose_save_dtype(parameter, save_settings) == at::kFloat) continue;
    tensors.emplace_back("master." + name, values);
  }
  return tensors;
}

nlohmann::ordered_json to_json(const data::Cursor& cursor) {
  auto lanes = nlohmann::ordered_json::array();
  for (const data::EpochPosition& position : cursor.sources)
    lanes.push_back({{"epoch", position.epoch}, {"position", position.offset}});
  return {{"lanes", std::move(lanes)}, {"due", cursor.deficits}, {"batches", cursor.num_batches}};
}

nlohmann::ordered_json to_json(const EvaluationState& evaluation) {
  nlohmann::ordered_json json{{"basis", evaluation.basis},
                              {"without_improvement", evaluation.evaluations_without_improvement},
                              {"is_due", evaluation.is_due}};
  if (evaluation.best_step) json["best_step"] = *evaluation.best_step;
  if (evaluation.best_value) json["best_value"] = *evaluation.best_value;
  if (evaluation.best_loss) json["best_loss"] = *evaluation.best_loss;
  return json;
}

std::string format_run_state(const RunState& state) {
  nlohmann::ordered_json json{{"step", state.step},
                              {"skipped_steps", state.skipped_steps},
                              {"cursor", to_json(state.cursor)},
                              {"fingerprint", state.fingerprint}};
  if (state.total_steps) json["total_steps"] = *state.total_steps;
  if (state.last_change_step > 0) {
    json["changed_at"] = state.last_change_step;
    json["schedule_start"] = state.schedule_start.step;
    json["schedule_start_skipped"] = state.schedule_start.skipped_steps;
    json["settled_parts"] = state.frozen_after_training;
  }
  if (!state.task_balance.is_null()) json["task_balance"] = state.task_balance;
  if (!state.evaluation.basis.is_null()) json["evaluation"] = to_json(state.evaluation);
  if (!state.host_memory.is_null()) json["host_memory"] = state.host_memory;
  if (!state.device_memory.is_null()) json["device_memory"] = state.device_memory;
  return io::to_json_string(json, 2) + "\n";
}

}  // namespace

CheckpointContent make_checkpoint_content(const RunState& state, const models::VisionLanguageModel& model,
                                          const engine::AdamW& optimizer, const data::Ledger& ledger,
                                          const models::BaseWeights& base, std::optional<at::ScalarType> dtype,
                                          ValueStorage values) {
  const at::NoGradGuard no_gradients;
  auto masters = optimizer.masters();
  auto tensors = optimizer.state();
  if (values == ValueStorage::kCopied) {
    HostCopyCache copies;
    for (auto* list : {&masters, &tensors}) {
      for (auto& [name, tensor] : *list) tensor = copies.get(tensor);
    }
  }
  models::SaveOptions save_settings{.base = &base, .dtype = dtype, .master_weights = {}};
  // Where ranks share them, each has all weights, in the type that it computes with.
  if (optimizer.shard().covers_all()) save_settings.master_weights = {masters.begin(), masters.end()};
  CheckpointContent content;
  content.step = state.step;
  content.best_step = state.evaluation.best_step;
  content.model = model.parameters().lora() ? models::make_adapter_contents(model, save_settings)
                                            : models::make_checkpoint_contents(model, save_settings, base.folder());
  content.model.base_fingerprint = get_setting_text(state.fingerprint, kBaseKey);
  content.optimizer = io::make_lazy_tensors(make_optimizer_tensors(model, std::move(tensors), masters, save_settings));
  content.ledger = io::to_json_string(ledger.to_json(), 2) + "\n";
  content.state = format_run_state(state);
  return content;
}

int64_t compute_copy_bytes(const engine::AdamW& optimizer) {
  std::map<const at::TensorImpl*, int64_t> bytes;
  for (const auto& tensors : {optimizer.masters(), optimizer.state()}) {
    for (const auto& [name, tensor] : tensors) {
      bytes[tensor.unsafeGetTensorImpl()] = static_cast<int64_t>(tensor.nbytes());
    }
  }
  int64_t sum = 0;
  for (const auto& [tensor, count] : bytes) sum += count;
  return sum;
}

int64_t compute_write_buffer_bytes(const models::VisionLanguageModel& model) {
  int64_t max_bytes = 0;
  for (const auto& parameter : model.parameters().all()) {
    max_bytes = std::max(max_bytes, parameter.elements() * static_cast<int64_t>(sizeof(float)));
  }
  return max_bytes;
}

}  // namespace vlmtrain::train
