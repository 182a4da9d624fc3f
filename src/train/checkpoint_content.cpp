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
class HostCopies {
 public:
  const at::Tensor& of(const at::Tensor& tensor) {
    auto& [original, copy] = by_tensor_[tensor.unsafeGetTensorImpl()];
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
  std::map<const at::TensorImpl*, Entry> by_tensor_;
};

/// The optimizer's state, and the fp32 values of what is saved in another type, where the state does not have them.
/// `masters` may be pieces (engine/saved_pieces.h).
io::NamedTensors state_to_save(const models::VisionLanguageModel& model, io::NamedTensors tensors,
                               const io::NamedTensors& masters, const models::SavedWeights& how) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) names.insert(name);
  std::map<std::string, const nn::Parameter*> parameters;
  for (const auto& parameter : model.parameters().all()) parameters.emplace(parameter.name, &parameter);
  for (const auto& [name, values] : masters) {
    const auto piece = engine::parse_piece_name(name);
    const nn::Parameter& parameter = *parameters.at(piece ? piece->first : name);
    if (names.contains("master." + name) || models::saved_dtype(parameter, how) == at::kFloat) continue;
    tensors.emplace_back("master." + name, values);
  }
  return tensors;
}

nlohmann::ordered_json to_json(const data::Cursor& cursor) {
  auto lanes = nlohmann::ordered_json::array();
  for (const data::Place& place : cursor.lanes) lanes.push_back({{"epoch", place.epoch}, {"position", place.position}});
  return {{"lanes", std::move(lanes)}, {"due", cursor.due}, {"batches", cursor.batches}};
}

nlohmann::ordered_json to_json(const EvaluationState& evaluation) {
  nlohmann::ordered_json json{{"basis", evaluation.basis},
                              {"without_improvement", evaluation.without_improvement},
                              {"is_due", evaluation.is_due}};
  if (evaluation.best_step) json["best_step"] = *evaluation.best_step;
  if (evaluation.best_value) json["best_value"] = *evaluation.best_value;
  if (evaluation.best_loss) json["best_loss"] = *evaluation.best_loss;
  return json;
}

std::string state_text(const RunState& state) {
  nlohmann::ordered_json json{{"step", state.step},
                              {"skipped_steps", state.skipped_steps},
                              {"cursor", to_json(state.cursor)},
                              {"fingerprint", state.fingerprint}};
  if (state.total_steps) json["total_steps"] = *state.total_steps;
  if (state.changed_at > 0) {
    json["changed_at"] = state.changed_at;
    json["schedule_start"] = state.schedule_start.step;
    json["schedule_start_skipped"] = state.schedule_start.skipped_steps;
    json["settled_parts"] = state.settled_parts;
  }
  if (!state.task_balance.is_null()) json["task_balance"] = state.task_balance;
  if (!state.evaluation.basis.is_null()) json["evaluation"] = to_json(state.evaluation);
  if (!state.host_memory.is_null()) json["host_memory"] = state.host_memory;
  if (!state.device_memory.is_null()) json["device_memory"] = state.device_memory;
  return io::json_text(json, 2) + "\n";
}

}  // namespace

CheckpointContent content_of(const RunState& state, const models::VisionLanguageModel& model,
                             const engine::AdamW& optimizer, const data::Ledger& ledger,
                             const models::BaseWeights& base, std::optional<at::ScalarType> dtype,
                             ChangingValues values) {
  const at::NoGradGuard no_gradients;
  auto masters = optimizer.masters();
  auto tensors = optimizer.state();
  if (values == ChangingValues::kCopied) {
    HostCopies copies;
    for (auto* list : {&masters, &tensors}) {
      for (auto& [name, tensor] : *list) tensor = copies.of(tensor);
    }
  }
  models::SavedWeights how{.base = &base, .dtype = dtype, .masters = {}};
  // Where ranks share them, each has all weights, in the type that it computes with.
  if (optimizer.shard().is_all()) how.masters = {masters.begin(), masters.end()};
  CheckpointContent content;
  content.step = state.step;
  content.best_step = state.evaluation.best_step;
  content.model = model.parameters().lora() ? models::adapter_to_save(model, how)
                                            : models::checkpoint_to_save(model, how, base.folder());
  content.model.base_fingerprint = text_in(state.fingerprint, kBaseKey);
  content.optimizer = io::lazily(state_to_save(model, std::move(tensors), masters, how));
  content.ledger = io::json_text(ledger.to_json(), 2) + "\n";
  content.state = state_text(state);
  return content;
}

int64_t bytes_of_copies(const engine::AdamW& optimizer) {
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

int64_t bytes_of_writing(const models::VisionLanguageModel& model) {
  int64_t most = 0;
  for (const auto& parameter : model.parameters().all()) {
    most = std::max(most, parameter.elements() * static_cast<int64_t>(sizeof(float)));
  }
  return most;
}

}  // namespace vlmtrain::train
