#include "vlmtrain/models/checkpoint.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <map>

#include "models/adapters/adapted_folder.h"
#include "models/adapters/adapter_check.h"
#include "models/adapters/adapter_format.h"
#include "models/checkpoints/auxiliary_files.h"
#include "models/checkpoints/config_checks.h"
#include "models/checkpoints/config_keys.h"
#include "models/checkpoints/load_weights.h"
#include "models/checkpoints/quantized_weights.h"
#include "models/checkpoints/saved_config.h"
#include "models/checkpoints/tensor_names.h"
#include "models/family.h"
#include "models/presets.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/memory/memory_tag.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/models/base_weights.h"
#include "vlmtrain/models/checkpoint_contents.h"

namespace vlmtrain::models {

std::unique_ptr<VisionLanguageModel> build_model(const std::filesystem::path& folder, at::Device device,
                                                 at::ScalarType dtype, const std::optional<nn::LoraSettings>& lora,
                                                 nn::Quantization quantization, const nn::Shard& shard,
                                                 nn::MemoryPlacement per_layer_tables, nn::MemoryPlacement blocks) {
  const memory::ComponentScope weights_scope(memory::Component::kWeights);
  auto config = read_model_config(folder);
  auto model = rethrow_json_errors(folder, [&] {
    const Family& family = find_family(config, folder);
    reject_quantized_weights(config, folder);
    config = reconcile_tied_output(std::move(config), family, folder);
    if (lora && lora->unties_output) set_tied_output(config, false);
    if (lora && lora->vocabulary_rows > 0) set_vocab_size(config, lora->vocabulary_rows);
    check_parameter_count(family.num_parameters(config, folder), folder);
    reject_unsupported_keys(config, (folder / "config.json").string());
    return family.build(config, folder,
                        {at::TensorOptions(dtype).device(device), lora, quantization, shard, per_layer_tables, blocks});
  });
  check_lora_targets(*model, folder);
  return model;
}

std::unique_ptr<Processor> load_processor(const std::filesystem::path& folder, const ProcessorSettings& settings) {
  if (is_adapter(folder)) {
    ProcessorSettings base_processor_settings = settings;
    // The adapter's own files take precedence; call_with_adapted_folder() overlays them below.
    if (base_processor_settings.chat_template_folder.empty()) base_processor_settings.chat_template_folder = folder;
    return load_processor(find_adapter_base(folder), base_processor_settings);
  }
  const auto load_family_processor = [](const nlohmann::json& config, const std::filesystem::path& source_folder,
                                        const ProcessorSettings& processor_settings) {
    return rethrow_json_errors(source_folder, [&] {
      auto processor = find_family(config, source_folder).load_processor(config, source_folder, processor_settings);
      const ContextLength context_length = read_context_length(config, source_folder);
      if (!context_length.is_hard_limit) {
        processor->set_position_limit({.max_positions = context_length.tokens, .key = std::string(context_length.key)});
      }
      return processor;
    });
  };
  const std::filesystem::path& adapter = settings.chat_template_folder;
  if (adapter.empty() || !is_adapter(adapter))
    return load_family_processor(read_model_config(folder), folder, settings);
  std::unique_ptr<Processor> processor;
  call_with_adapted_folder(folder, adapter, [&](const AdaptedFolder& adapted_folder) {
    ProcessorSettings processor_settings = settings;
    processor_settings.chat_template_folder = adapted_folder.chat_template_folder;
    processor = load_family_processor(adapted_folder.config, adapted_folder.path, processor_settings);
  });
  return processor;
}

void initialize_weights(VisionLanguageModel& model, uint64_t seed) {
  for (const auto& parameter : get_base_parameters(model)) initialize_parameter(parameter, seed);
}

std::vector<nn::Parameter> get_base_parameters(const VisionLanguageModel& model) {
  std::vector<nn::Parameter> result;
  for (const auto& parameter : model.parameters().all()) {
    if (!parameter.is_adapter) result.push_back(parameter);
  }
  return result;
}

at::Tensor make_initial_values(const nn::Parameter& parameter, uint64_t seed) {
  const at::NoGradGuard no_gradients;
  const auto& [mean, deviation, is_uniform] = parameter.initial_values;
  at::Tensor values = at::empty(parameter.sizes(), at::kFloat);
  if (deviation == 0) return values.fill_(mean);
  // A stream per name makes the values independent of the order and number of parameters.
  auto generator = at::make_generator<at::CPUGeneratorImpl>(derive_stream_seed(seed, parameter.name));
  if (is_uniform) return values.uniform_(mean - deviation, mean + deviation, generator);
  return values.normal_(mean, deviation, generator);
}

void initialize_parameter(const nn::Parameter& parameter, uint64_t seed) {
  const at::NoGradGuard no_gradients;
  parameter.set_values(make_initial_values(parameter, seed));
}

io::NamedTensors get_named_weights(const VisionLanguageModel& model) {
  io::NamedTensors weights;
  for (const auto& parameter : get_base_parameters(model)) {
    weights.emplace_back(model.get_checkpoint_tensor_name(parameter.name), parameter.tensor.detach());
  }
  return weights;
}

void save_checkpoint(const VisionLanguageModel& model, const std::filesystem::path& source,
                     const std::filesystem::path& out, int64_t max_shard_bytes) {
  reject_quantized_model(model, out);
  const auto config = source / "config.json";
  io::write_file(out / "config.json", make_saved_config(model, io::read_file(config), config.string(),
                                                        model.parameters().options().dtype().toScalarType()));
  copy_auxiliary_files(source, out);
  auto weights = get_named_weights(model);
  model.add_computed_tables(weights);
  io::write_checkpoint_tensors(out, weights, max_shard_bytes);
}

void write_initial_weights(const std::filesystem::path& folder, uint64_t seed, at::ScalarType dtype) {
  const auto model = build_model(folder, at::kMeta, at::kFloat);
  const auto config = folder / "config.json";
  io::write_file(config, make_saved_config(*model, io::read_file(config), config.string(), dtype));
  io::LazyTensors weights;
  for (const auto& parameter : get_base_parameters(*model)) {
    weights.push_back(
        {.name = model->get_checkpoint_tensor_name(parameter.name),
         .dtype = dtype,
         .shape = parameter.sizes().vec(),
         .materialize = [parameter, seed, dtype] { return make_initial_values(parameter, seed).to(dtype); }});
  }
  io::NamedTensors computed_tables;
  model->add_computed_tables(computed_tables);
  for (auto& table : io::make_lazy_tensors(computed_tables)) weights.push_back(std::move(table));
  io::write_checkpoint_tensors(folder, weights, io::kDefaultMaxShardBytes);
}

AssemblyResult assemble_checkpoint(const AssemblyOptions& options, const std::filesystem::path& out) {
  const auto find_assemble_function = [](const std::string& preset) {
    return find_family(load_preset_config(preset), preset).assemble_checkpoint;
  };
  if (const auto assemble_family = find_assemble_function(options.preset)) return assemble_family(options, out);
  auto names = list_presets();
  std::erase_if(names, [&](const std::string& name) { return find_assemble_function(name) == nullptr; });
  throw usage_error(
      "--preset {}: is not assembled from parts; --text-model, --mask-model and --volume-tower are for {}",
      options.preset, fmt::join(names, ", "));
}

bool has_volume_tower(const std::string& preset) {
  return find_family(load_preset_config(preset), preset).compute_volume_sample_shape != nullptr;
}

}  // namespace vlmtrain::models
