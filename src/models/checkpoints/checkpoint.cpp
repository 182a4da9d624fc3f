#include "vlmtrain/models/checkpoint.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <map>

#include "models/adapters/adapted_folder.h"
#include "models/adapters/adapter_layout.h"
#include "models/adapters/lora_targets.h"
#include "models/checkpoints/companion_files.h"
#include "models/checkpoints/config_changes.h"
#include "models/checkpoints/config_keys.h"
#include "models/checkpoints/config_of_weights.h"
#include "models/checkpoints/from_settings.h"
#include "models/checkpoints/quantized_weights.h"
#include "models/checkpoints/read_model_config.h"
#include "models/checkpoints/saved_config.h"
#include "models/checkpoints/saved_tensors.h"
#include "models/checkpoints/size_limits.h"
#include "models/checkpoints/tied_output.h"
#include "models/checkpoints/weights.h"
#include "models/processing/extended_context.h"
#include "models/registry.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/rng.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/memory/place.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/models/base_fingerprint.h"
#include "vlmtrain/models/weights_to_save.h"

namespace vlmtrain::models {

std::unique_ptr<VisionLanguageModel> build_model(const std::filesystem::path& folder, at::Device device,
                                                 at::ScalarType dtype, const std::optional<nn::LoraSettings>& lora,
                                                 nn::Quantization quantization, const nn::Shard& shard) {
  const memory::InComponent weights(memory::Component::kWeights);
  auto config = read_model_config(folder);
  auto model = from_settings(folder, [&] {
    const Family& family = family_of(config, folder);
    refuse_quantized_weights(config, folder);
    config = config_of_weights(std::move(config), family, folder);
    if (lora && lora->unties_output) set_tying(config, false);
    if (lora && lora->vocabulary_rows > 0) set_vocabulary(config, lora->vocabulary_rows);
    check_elements(family.elements(config, folder), folder);
    refuse_altering_keys(config, (folder / "config.json").string());
    return family.build(config, folder, {at::TensorOptions(dtype).device(device), lora, quantization, shard});
  });
  check_lora_targets(*model, folder);
  return model;
}

std::unique_ptr<Processor> load_processor(const std::filesystem::path& folder, const ProcessorSettings& settings) {
  if (is_adapter(folder)) {
    ProcessorSettings of_base = settings;
    if (of_base.template_folder.empty()) of_base.template_folder = folder;
    return load_processor(base_of_adapter(folder), of_base);
  }
  const auto load = [](const nlohmann::json& config, const std::filesystem::path& place,
                       const ProcessorSettings& chosen) {
    return from_settings(place, [&] {
      auto processor = family_of(config, place).load_processor(config, place, chosen);
      const ContextLength context = context_length_of(config, place);
      if (!context.refuses_longer) {
        processor->set_made_for({.positions = context.tokens, .key = std::string(context.key)});
      }
      return processor;
    });
  };
  const std::filesystem::path& adapter = settings.template_folder;
  if (adapter.empty() || !is_adapter(adapter)) return load(read_model_config(folder), folder, settings);
  std::unique_ptr<Processor> processor;
  with_adapted_folder(folder, adapter, [&](const AdaptedFolder& adapted) {
    ProcessorSettings chosen = settings;
    chosen.template_folder = adapted.templates;
    processor = load(adapted.config, adapted.path, chosen);
  });
  return processor;
}

void initialize_weights(VisionLanguageModel& model, uint64_t seed) {
  for (const auto& parameter : own_parameters(model)) draw_initial_values(parameter, seed);
}

std::vector<nn::Parameter> own_parameters(const VisionLanguageModel& model) {
  std::vector<nn::Parameter> own;
  for (const auto& parameter : model.parameters().all()) {
    if (!parameter.is_adapter) own.push_back(parameter);
  }
  return own;
}

at::Tensor initial_values(const nn::Parameter& parameter, uint64_t seed) {
  const at::NoGradGuard no_gradients;
  const auto& [mean, deviation, is_uniform] = parameter.initial;
  at::Tensor values = at::empty(parameter.sizes(), at::kFloat);
  if (deviation == 0) return values.fill_(mean);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(stream_seed(seed, parameter.name));
  if (is_uniform) return values.uniform_(mean - deviation, mean + deviation, generator);
  return values.normal_(mean, deviation, generator);
}

void draw_initial_values(const nn::Parameter& parameter, uint64_t seed) {
  const at::NoGradGuard no_gradients;
  parameter.set_values(initial_values(parameter, seed));
}

io::NamedTensors weights_of(const VisionLanguageModel& model) {
  io::NamedTensors weights;
  for (const auto& parameter : own_parameters(model)) {
    weights.emplace_back(model.checkpoint_name(parameter.name), parameter.tensor.detach());
  }
  return weights;
}

namespace {

void refuse_quantized_model(const VisionLanguageModel& model, const std::filesystem::path& out) {
  if (model.parameters().quantization() == nn::Quantization::kNone) return;
  throw usage_error(
      "{}: the weights of the model are quantised (model.quantization), so they are not written as a checkpoint; save "
      "its adapter, and merge that with the base's own weights (vlmtrain merge)",
      out.string());
}

}  // namespace

void save_checkpoint(const VisionLanguageModel& model, const std::filesystem::path& source,
                     const std::filesystem::path& out, int64_t max_shard_bytes) {
  refuse_quantized_model(model, out);
  const auto config = source / "config.json";
  io::write_file(out / "config.json", saved_config(model, io::read_file(config), config.string(),
                                                   model.parameters().options().dtype().toScalarType()));
  copy_companion_files(source, out);
  auto weights = weights_of(model);
  model.complete_weights(weights);
  io::write_checkpoint_tensors(out, weights, max_shard_bytes);
}

void complete_with_initial_weights(const std::filesystem::path& folder, uint64_t seed, at::ScalarType dtype) {
  const auto model = build_model(folder, at::kMeta, at::kFloat);
  const auto config = folder / "config.json";
  io::write_file(config, saved_config(*model, io::read_file(config), config.string(), dtype));
  io::LazyTensors weights;
  for (const auto& parameter : own_parameters(*model)) {
    weights.push_back({.name = model->checkpoint_name(parameter.name),
                       .dtype = dtype,
                       .shape = parameter.sizes().vec(),
                       .make = [parameter, seed, dtype] { return initial_values(parameter, seed).to(dtype); }});
  }
  io::NamedTensors tables;
  model->complete_weights(tables);
  for (auto& table : io::lazily(tables)) weights.push_back(std::move(table));
  io::write_checkpoint_tensors(folder, weights, io::kDefaultShardBytes);
}

ModelToSave checkpoint_to_save(const VisionLanguageModel& model, const SavedWeights& how,
                               const std::filesystem::path& out) {
  refuse_quantized_model(model, out);
  ModelToSave saved;
  const auto parameters = own_parameters(model);
  saved.tensors = tensors_to_save(model.parameters(), parameters, how, [&model](const nn::Parameter& parameter) {
    return model.checkpoint_name(parameter.name);
  });
  // Loaders convert all to the type of config.json.
  std::optional<at::ScalarType> dtype = how.dtype;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (saved.tensors[i].dtype != saved_dtype(parameters[i], how)) dtype = at::kFloat;
  }
  for (const auto& [name, content] : how.base->files()) {
    const bool is_config = name == "config.json";
    saved.files.emplace_back(name, is_config ? saved_config(model, content, name, dtype) : content);
  }
  io::NamedTensors tables;
  model.complete_weights(tables);
  for (auto& table : io::lazily(tables)) saved.tensors.push_back(std::move(table));
  return saved;
}

void ModelToSave::write(const std::filesystem::path& out, int64_t max_shard_bytes) const {
  for (const auto& [name, content] : files) write_companion_file(out, name, content);
  if (is_adapter) {
    std::map<std::string, std::string> metadata{{"format", "pt"}};
    if (!base_fingerprint.empty()) metadata.emplace(kBaseFingerprintKey, base_fingerprint);
    io::write_safetensors(out / kAdapterWeightsName, tensors, metadata);
  } else {
    io::write_checkpoint_tensors(out, tensors, max_shard_bytes);
  }
}

void save_checkpoint(const VisionLanguageModel& model, const SavedWeights& how, const std::filesystem::path& out,
                     int64_t max_shard_bytes) {
  checkpoint_to_save(model, how, out).write(out, max_shard_bytes);
}

}  // namespace vlmtrain::models
