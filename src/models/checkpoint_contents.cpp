#include "vlmtrain/models/checkpoint_contents.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <system_error>
#include <tuple>
#include <utility>

#include "models/adapters/adapter_check.h"
#include "models/adapters/adapter_config.h"
#include "models/adapters/adapter_format.h"
#include "models/checkpoints/auxiliary_files.h"
#include "models/checkpoints/load_weights.h"
#include "models/checkpoints/quantized_weights.h"
#include "models/checkpoints/saved_config.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::models {

namespace {

namespace fs = std::filesystem;

bool is_trained(const nn::Parameter& parameter) {
  return parameter.tensor.requires_grad();
}

/// Returns `dtype`, or fp32 with a warning if values would overflow in `dtype`.
at::ScalarType widen_dtype_on_overflow(const std::string& name, const nn::StoredTensor& values, at::ScalarType dtype) {
  // Only fp16 has a smaller range than both halves.
  const std::string problem = describe_overflow(name, dtype == at::kHalf ? values.read() : values.values, dtype);
  if (problem.empty()) return dtype;
  spdlog::warn("{}; it is saved in F32 (set {}=bf16 or fp32 to save all weights alike)", problem, keys::output::kDtype);
  return at::kFloat;
}

/// Returns a function that reads a frozen parameter's values from the base, with rows added or
/// dropped if the vocabulary was resized; empty if the base does not have the tensor in this shape.
std::function<at::Tensor()> find_base_reader(const nn::Parameter& parameter, const BaseWeights::BaseTensor* entry) {
  if (entry == nullptr) return {};
  if (parameter.sizes() == at::IntArrayRef(entry->info.shape)) return entry->read;
  if (!differs_only_in_rows(parameter, entry->info.shape)) return {};
  return [parameter, read = entry->read] { return resize_table_rows(parameter, read()); };
}

}  // namespace

at::ScalarType choose_save_dtype(const nn::Parameter& parameter, const CheckpointSaveOptions& options) {
  const BaseWeights::BaseTensor* entry = options.base->find_base_tensor(parameter);
  const at::ScalarType parameter_dtype = parameter.tensor.scalar_type();
  // Frozen parameters of an adapter keep their dtype, whatever options.dtype is.
  if (!is_trained(parameter) && parameter.is_saved_with_adapter()) return entry ? entry->info.dtype : parameter_dtype;
  if (options.dtype) return *options.dtype;
  if (entry == nullptr) return is_trained(parameter) ? options.base->dtype() : parameter_dtype;
  // Trained weights are not saved in the base's dtype if that is an 8-bit type.
  return !is_trained(parameter) || is_savable_dtype(entry->info.dtype) ? entry->info.dtype : parameter_dtype;
}

namespace {

/// Returns the tensors of `parameters` in the dtypes they are saved in, named by `get_name`. Their
/// values are read when they are written, so `store` and the base must outlive the result.
io::LazyTensors make_lazy_tensors(const nn::ParameterStore& store, const std::vector<nn::Parameter>& parameters,
                                  const CheckpointSaveOptions& options,
                                  const std::function<std::string(const nn::Parameter&)>& get_name) {
  const bool are_base_files_unchanged = options.base->are_files_unchanged();
  bool needs_base_files = false;
  io::LazyTensors tensors;
  for (const nn::Parameter& parameter : parameters) {
    at::ScalarType dtype = choose_save_dtype(parameter, options);
    io::LazyTensor tensor{.name = get_name(parameter),
                          .dtype = dtype,
                          .shape = parameter.sizes().vec(),
                          .materialize = {},
                          .on_written = {}};
    const BaseWeights::BaseTensor* entry = options.base->find_base_tensor(parameter);
    const auto master_weight = options.master_weights.find(parameter.name);
    const nn::StoredTensor trained_values = master_weight != options.master_weights.end()
                                                ? master_weight->second
                                                : nn::StoredTensor{parameter.tensor.detach()};
    // Sharded values are gathered only when they are written, so they are not checked here.
    const bool is_sharded = parameter.sharded_block && !parameter.sharded_block->is_whole();
    if (is_trained(parameter) && !is_sharded) {
      dtype = widen_dtype_on_overflow(tensor.name, trained_values, dtype);
    } else if (const auto read = find_base_reader(parameter, entry);
               read && are_base_files_unchanged && !is_trained(parameter)) {
      if (dtype != entry->info.dtype) dtype = widen_dtype_on_overflow(tensor.name, {read()}, dtype);
    }
    tensor.dtype = dtype;
    const auto read_current_values = [&store, parameter, dtype] {
      return store.unshard_values(parameter).cpu().to(dtype);
    };
    if (is_trained(parameter) && is_sharded) {
      tensor.materialize = read_current_values;
    } else if (is_trained(parameter)) {
      // The tensor is released after writing, since it may be a copy of the weight.
      const auto values = std::make_shared<nn::StoredTensor>(trained_values);
      tensor.materialize = [values, dtype] { return values->read_on_host().to(dtype); };
      tensor.on_written = [values] { *values = {}; };
    } else if (const auto read = find_base_reader(parameter, entry); read && are_base_files_unchanged) {
      tensor.materialize = [read, dtype] { return read().to(dtype); };
      tensor.on_written = entry->release;
    } else {
      needs_base_files |= static_cast<bool>(read);
      tensor.materialize = read_current_values;
    }
    tensors.push_back(std::move(tensor));
  }
  if (needs_base_files) {
    spdlog::warn(
        "{}: its weights have changed or no longer exist; frozen weights are saved in the precision of the run",
        options.base->folder().string());
  }
  return tensors;
}

/// Adds the tensors of modules that are not built, in their stored dtype or options.dtype.
void add_passed_through_tensors(io::LazyTensors& tensors, const CheckpointSaveOptions& options) {
  const auto& passed_through = options.base->passed_through_tensors();
  if (passed_through.empty()) return;
  if (!options.base->are_files_unchanged()) {
    spdlog::warn("{}: its weights have changed or no longer exist; the checkpoint is saved without {} and {} similar",
                 options.base->folder().string(), passed_through.begin()->first, passed_through.size() - 1);
    return;
  }
  for (const auto& [name, tensor] : passed_through) {
    const at::ScalarType dtype = options.dtype.value_or(tensor.info.dtype);
    tensors.push_back({.name = name,
                       .dtype = dtype,
                       .shape = tensor.info.shape,
                       .materialize = [read = tensor.read, dtype] { return read().to(dtype); },
                       .on_written = tensor.release});
  }
}

}  // namespace

CheckpointContents make_checkpoint_contents(const VisionLanguageModel& model, const CheckpointSaveOptions& options,
                                            const std::filesystem::path& out) {
  reject_quantized_model(model, out);
  CheckpointContents contents;
  const auto parameters = get_base_parameters(model);
  contents.tensors = make_lazy_tensors(
      model.parameters(), parameters, options,
      [&model](const nn::Parameter& parameter) { return model.get_checkpoint_tensor_name(parameter.name); });
  // transformers converts all weights to the dtype of config.json, so it must be fp32 if any weight
  // was widened.
  std::optional<at::ScalarType> dtype = options.dtype;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (contents.tensors[i].dtype != choose_save_dtype(parameters[i], options)) dtype = at::kFloat;
  }
  for (const auto& [name, content] : options.base->files()) {
    const bool is_config_file = name == "config.json";
    contents.files.emplace_back(name, is_config_file ? make_saved_config(model, content, name, dtype) : content);
  }
  io::NamedTensors tables;
  model.add_computed_tables(tables);
  for (auto& table : io::make_lazy_tensors(tables)) contents.tensors.push_back(std::move(table));
  add_passed_through_tensors(contents.tensors, options);
  return contents;
}

void CheckpointContents::write(const std::filesystem::path& out, int64_t max_shard_bytes) const {
  for (const auto& [name, content] : files) write_auxiliary_file(out, name, content);
  if (is_adapter) {
    std::map<std::string, std::string> metadata{{"format", "pt"}};
    if (!base_fingerprint.empty()) metadata.emplace(kBaseFingerprintKey, base_fingerprint);
    io::write_safetensors(out / kAdapterWeightsName, tensors, metadata);
  } else {
    io::write_checkpoint_tensors(out, tensors, max_shard_bytes);
  }
}

void save_checkpoint(const VisionLanguageModel& model, const CheckpointSaveOptions& options,
                     const std::filesystem::path& out, int64_t max_shard_bytes) {
  make_checkpoint_contents(model, options, out).write(out, max_shard_bytes);
}

CheckpointContents make_adapter_contents(const VisionLanguageModel& model, const CheckpointSaveOptions& options) {
  CheckpointContents contents;
  contents.is_adapter = true;
  contents.files.emplace_back(kAdapterConfigName, make_adapter_config(model, options.base->folder()));
  for (const auto& [name, content] : options.base->files()) {
    if (name != "config.json") contents.files.emplace_back(name, content);
  }
  const auto make_adapter_tensor_name = [](const nn::Parameter& parameter) {
    return std::string(kAdapterTensorPrefix) + parameter.name;
  };
  contents.tensors =
      make_lazy_tensors(model.parameters(), get_adapter_parameters(model), options, make_adapter_tensor_name);
  if (saves_tied_output(model)) {
    const auto make_output_tensor_name = [&model](const nn::Parameter&) { return make_tied_output_name(model); };
    for (auto& output :
         make_lazy_tensors(model.parameters(), {*find_tied_embedding(model)}, options, make_output_tensor_name)) {
      contents.tensors.push_back(std::move(output));
    }
  }
  return contents;
}

void save_adapter(const VisionLanguageModel& model, const CheckpointSaveOptions& options,
                  const std::filesystem::path& out) {
  make_adapter_contents(model, options).write(out, io::kDefaultMaxShardBytes);
}

void restore_frozen_weights(VisionLanguageModel& model, const fs::path& saved, const BaseWeights& base, uint64_t seed) {
  const at::NoGradGuard no_gradients;
  const io::CheckpointTensors tensors(saved);
  for (const auto& parameter : get_base_parameters(model)) {
    const std::string name = model.get_checkpoint_tensor_name(parameter.name);
    if (is_trained(parameter) || !tensors.contains(name)) continue;
    const at::ScalarType dtype = tensors.info(name).dtype;
    const BaseWeights::BaseTensor* entry = base.find_base_tensor(parameter);
    if (dtype == (entry ? entry->info.dtype : parameter.tensor.scalar_type())) continue;
    if (const auto read = find_base_reader(parameter, entry)) {
      parameter.set_values(read());
      entry->release();
    } else if (entry == nullptr) {
      initialize_parameter(parameter, seed);
    }
  }
}

}  // namespace vlmtrain::models
