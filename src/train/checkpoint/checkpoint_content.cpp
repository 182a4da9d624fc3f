#include "train/checkpoint/checkpoint_content.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/train/run_changes.h"

namespace vlmtrain::train {

namespace {

/// Copies of tensors in host memory. A tensor that is requested twice is copied once.
class HostCopyCache {
 public:
  const at::Tensor& get(const at::Tensor& tensor) {
    auto& [original, host_copy] = host_copies_[tensor.unsafeGetTensorImpl()];
    if (!host_copy.defined()) {
      original = tensor;
      host_copy = tensor.detach().to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    }
    return host_copy;
  }

 private:
  struct Entry {
    at::Tensor original, host_copy;  // the original is kept so that its address stays unique
  };
  std::map<const at::TensorImpl*, Entry> host_copies_;
};

/// Returns `tensors`, the optimizer's state, together with the fp32 values of the weights whose
/// model file has another data type, unless the state has them. `master_weights`: the fp32 values
/// by parameter, whole or shards (engine::parse_shard_name).
io::NamedTensors make_optimizer_tensors(const models::VisionLanguageModel& model, io::NamedTensors tensors,
                                        const io::NamedTensors& master_weights,
                                        const models::CheckpointSaveOptions& save_options) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) names.insert(name);
  std::map<std::string, const nn::Parameter*> parameters;
  for (const auto& parameter : model.parameters().all()) parameters.emplace(parameter.name, &parameter);
  for (const auto& [name, values] : master_weights) {
    const auto piece = engine::parse_shard_name(name);
    const nn::Parameter& parameter = *parameters.at(piece ? piece->first : name);
    if (names.contains("master." + name) || models::choose_save_dtype(parameter, save_options) == at::kFloat) continue;
    tensors.emplace_back("master." + name, values);
  }
  return tensors;
}

}  // namespace

CheckpointContent make_checkpoint_content(const RunState& state, const models::VisionLanguageModel& model,
                                          const engine::Optimizer& optimizer, const data::Ledger& ledger,
                                          const models::BaseWeights& base, std::optional<at::ScalarType> dtype,
                                          ParameterValueStorage values) {
  const at::NoGradGuard no_gradients;
  auto master_weights = optimizer.master_weights();
  auto tensors = optimizer.state();
  if (values == ParameterValueStorage::kCopied) {
    HostCopyCache copies;
    for (auto* list : {&master_weights, &tensors}) {
      for (auto& [name, tensor] : *list) tensor = copies.get(tensor);
    }
  }
  models::CheckpointSaveOptions save_options{.base = &base, .dtype = dtype, .master_weights = {}};
  // With a sharded optimizer, a rank has only a part of the master weights. The saved weights then
  // come from the weights that it computes with.
  if (optimizer.shard().covers_all()) save_options.master_weights = {master_weights.begin(), master_weights.end()};
  CheckpointContent content;
  content.step = state.step;
  content.best_step = state.evaluation.best_step;
  content.model = model.parameters().lora() ? models::make_adapter_contents(model, save_options)
                                            : models::make_checkpoint_contents(model, save_options, base.folder());
  content.model.base_fingerprint = format_setting_value(state.fingerprint, kBaseWeightsKey);
  content.optimizer =
      io::make_lazy_tensors(make_optimizer_tensors(model, std::move(tensors), master_weights, save_options));
  content.ledger = io::to_json_string(ledger.to_json(), 2) + "\n";
  content.state = format_run_state(state);
  return content;
}

int64_t compute_host_copy_bytes(const engine::Optimizer& optimizer) {
  std::map<const at::TensorImpl*, int64_t> bytes;
  for (const auto& tensors : {optimizer.master_weights(), optimizer.state()}) {
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

namespace {

// Keys in the metadata of a shard's safetensors file.
constexpr const char* kShardKey = "part";
constexpr const char* kStepKey = "step";

/// Returns "?" for a missing key, for messages.
std::string get_metadata_value(const io::SafetensorsFile& file, const char* key) {
  const auto it = file.metadata().find(key);
  return it == file.metadata().end() ? "?" : it->second;
}

/// Returns the number of shards according to their file names; nullopt if there are no shards.
/// Throws UserError (kBadData) if names disagree.
std::optional<int64_t> count_shards(const std::filesystem::path& folder) {
  std::optional<int64_t> num_shards;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    long long number = 0, count = 0;
    if (std::sscanf(name.c_str(), "optimizer-%5lld-of-%5lld.safetensors", &number, &count) != 2) continue;
    if (number < 1 || number > count || name != make_optimizer_file_name(number - 1, count)) continue;
    if (num_shards && *num_shards != count) {
      throw data_error("{}: has optimizer states in {} and in {} shards; copy the checkpoint again", folder.string(),
                       std::min(*num_shards, int64_t{count}), std::max(*num_shards, int64_t{count}));
    }
    num_shards = count;
  }
  return num_shards;
}

}  // namespace

std::string make_optimizer_file_name(int64_t rank, int64_t num_shards) {
  return num_shards == 1 ? "optimizer.safetensors"
                         : fmt::format("optimizer-{:05}-of-{:05}.safetensors", rank + 1, num_shards);
}

std::vector<std::filesystem::path> find_optimizer_files(const std::filesystem::path& trainer_state) {
  const auto unsharded_file = trainer_state / make_optimizer_file_name(0, 1);
  const auto num_shards = count_shards(trainer_state);
  if (num_shards && std::filesystem::exists(unsharded_file)) {
    throw data_error("{}: has an optimizer state in {} shards and an unsharded one; copy the checkpoint again",
                     trainer_state.string(), *num_shards);
  }
  if (!num_shards) return {unsharded_file};
  std::vector<std::filesystem::path> files;
  for (int64_t rank = 0; rank < *num_shards; ++rank) {
    files.push_back(trainer_state / make_optimizer_file_name(rank, *num_shards));
    if (std::filesystem::exists(files.back())) continue;
    throw data_error("{}: is missing, one of the {} shards of the optimizer state; copy the checkpoint again",
                     files.back().string(), *num_shards);
  }
  return files;
}

std::vector<io::SafetensorsFile> open_optimizer_files(const std::filesystem::path& trainer_state) {
  std::vector<io::SafetensorsFile> files;
  for (const auto& path : find_optimizer_files(trainer_state)) files.emplace_back(path);
  if (files.size() == 1) return files;
  const std::string step = get_metadata_value(files.front(), kStepKey);
  for (size_t i = 0; i < files.size(); ++i) {
    if (get_metadata_value(files[i], kShardKey) != std::to_string(i + 1)) {
      throw data_error("{}: contains shard {} of the optimizer state; copy the checkpoint again",
                       files[i].path().string(), get_metadata_value(files[i], kShardKey));
    }
    if (get_metadata_value(files[i], kStepKey) != step) {
      throw data_error("{}: is from step {}, but {} is from step {}; copy the checkpoint again",
                       files[i].path().string(), get_metadata_value(files[i], kStepKey),
                       files.front().path().filename().string(), step);
    }
  }
  return files;
}

std::string format_optimizer_file_pattern(const std::filesystem::path& trainer_state) {
  const auto files = find_optimizer_files(trainer_state);
  if (files.size() == 1) return files.front().string();
  return (trainer_state / fmt::format("optimizer-*-of-{:05}.safetensors", files.size())).string();
}

std::map<std::string, std::string> make_shard_metadata(int64_t rank, int64_t step) {
  return {{"format", "pt"}, {kShardKey, std::to_string(rank + 1)}, {kStepKey, std::to_string(step)}};
}

}  // namespace vlmtrain::train
