#include "vlmtrain/models/checkpoint.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "models/companion_files.h"
#include "models/load_parameters.h"
#include "models/registry.h"
#include "models/weights.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/options.h"
#include "vlmtrain/base/rng.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/memory/place.h"
#include "vlmtrain/models/adapter.h"

namespace vlmtrain::models {

namespace {

constexpr std::string_view kTiedOutputs[] = {"lm_head.weight", "decoder.head.weight"};
constexpr std::string_view kTables[] = {".rotary_emb.inv_freq", ".rotary_embd.inv_freq", ".embeddings.position_ids"};

const char* dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "float32";
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    default:
      throw InternalError("weights of an unknown dtype");
  }
}

/// Some checkpoints with tied embeddings carry the output projection once more, and older ones carry tables that are
/// computed.
bool may_be_unused(std::string_view name) {
  const auto ends_name = [name](std::string_view end) { return name.ends_with(end); };
  return std::ranges::any_of(kTiedOutputs, ends_name) || std::ranges::any_of(kTables, ends_name);
}

/// The modules of a store's parameters, those of numbered blocks left out: `model.connector`, `lm_head`.
std::vector<std::string> module_names(const nn::ParameterStore& store) {
  std::set<std::string> names;
  for (const auto& parameter : store.all()) {
    const bool is_numbered = parameter.name.find_first_of("0123456789") != std::string::npos;
    if (!is_numbered && !parameter.is_adapter) names.insert(parameter.name.substr(0, parameter.name.rfind('.')));
  }
  return {names.begin(), names.end()};
}

/// What bitsandbytes wrote beside the bytes of its quantised weights.
void refuse_quantized(const io::CheckpointTensors& weights, const std::filesystem::path& folder) {
  for (const auto& name : weights.names()) {
    if (name.find(".quant_state.bitsandbytes__") == std::string::npos && !name.ends_with(".SCB")) continue;
    throw data_error(
        "{}: its weights are quantised by bitsandbytes already ({}); take the checkpoint that they were made of, in 16 "
        "or 32 bits, and set model.quantization=nf4 or int8",
        folder.string(), name);
  }
}

/// A pattern that matches nothing is a slip of the pen, or an adapter for another model.
void check_lora_targets(const nn::ParameterStore& store, const std::filesystem::path& folder) {
  if (!store.lora()) return;
  const auto& lora = *store.lora();
  if (const auto unknown = store.saved_modules_without_parameter(); !unknown.empty()) {
    throw lora.adapter.empty()
        ? usage_error("lora.modules_to_save: no module of {} is {}; its modules are {}", folder.string(),
                      fmt::join(unknown, ", "), fmt::join(shortened(module_names(store)), ", "))
        : data_error(
              "{}: holds the modules {}, and {} has none of that name; is it an adapter "
              "for another model?",
              lora.adapter.string(), fmt::join(unknown, ", "), folder.string());
  }
  const auto unmatched = store.targets_without_linear();
  if (unmatched.empty()) return;
  if (!lora.adapter.empty()) {
    throw data_error("{}: adapts {}, and {} has no such Linear; is it an adapter for another model?",
                     lora.adapter.string(), fmt::join(shortened(unmatched), ", "), folder.string());
  }
  std::set<std::string> last_names;
  for (const auto& linear : store.linears()) last_names.insert(linear.path.substr(linear.path.rfind('.') + 1));
  std::vector<std::string> problems;
  for (const auto& target : unmatched) {
    const auto near = nearest(target, {last_names.begin(), last_names.end()});
    problems.push_back(target + (near && *near != target ? fmt::format(" (did you mean {}?)", *near) : ""));
  }
  throw usage_error("lora.target_modules: no Linear of {}{} for {}. There are {}, at paths such as {}", folder.string(),
                    lora.left_out.empty() ? "" : " outside the frozen parts", fmt::join(problems, ", "),
                    fmt::join(last_names, ", "), store.linears().back().path);
}

bool lies_within_any(std::string_view name, const std::vector<std::string>& modules) {
  return std::ranges::any_of(modules, [&](const std::string& module) { return nn::lies_within(name, module); });
}

Tolerance tolerance_of(const VisionLanguageModel& model, const LoadSettings& settings) {
  const int64_t vocabulary = model.output_weight().size(0);
  return {
      .may_be_missing = [&settings](std::string_view name) { return lies_within_any(name, settings.allow_missing); },
      .may_be_unused =
          [&settings](std::string_view name) {
            return may_be_unused(name) || lies_within_any(name, settings.allow_unexpected);
          },
      .may_have_other_rows =
          [&settings, vocabulary](const nn::Parameter& parameter) {
            return settings.resize_embeddings && parameter.component == nn::Component::kLanguageModel &&
                   parameter.tensor.size(0) == vocabulary;
          }};
}

}  // namespace

std::unique_ptr<VisionLanguageModel> build_model(const std::filesystem::path& folder, at::Device device,
                                                 at::ScalarType dtype, const std::optional<nn::LoraSettings>& lora,
                                                 nn::Quantization quantization) {
  const memory::InComponent weights(memory::Component::kWeights);
  const auto config = io::read_json(folder / "config.json");
  auto model =
      family_of(config, folder).build(config, folder, {at::TensorOptions(dtype).device(device), lora, quantization});
  check_lora_targets(model->parameters(), folder);
  return model;
}

std::unique_ptr<Processor> load_processor(const std::filesystem::path& folder, const ProcessorSettings& settings) {
  if (is_adapter(folder)) return load_processor(base_of_adapter(folder), settings);
  const auto config = io::read_json(folder / "config.json");
  return family_of(config, folder).load_processor(config, folder, settings);
}

LoadedWeights load_weights(VisionLanguageModel& model, const std::filesystem::path& folder,
                           const LoadSettings& settings) {
  const at::NoGradGuard no_gradients;
  std::vector<nn::Parameter> own;
  std::map<std::filesystem::path, std::vector<nn::Parameter>> elsewhere;
  for (nn::Parameter parameter : own_parameters(model)) {
    const auto place = model.weight_elsewhere(parameter.name);
    parameter.name = place ? place->name : model.checkpoint_name(parameter.name);
    (place ? elsewhere[place->folder] : own).push_back(std::move(parameter));
  }
  const io::CheckpointTensors weights(folder);
  refuse_quantized(weights, folder);
  const auto differences = load_parameters(
      own, weights, "", tolerance_of(model, settings),
      fmt::format("{}: the weights do not match config.json; model.allow_missing, model.allow_unexpected and "
                  "model.resize_embeddings let a run begin all the same",
                  folder.string()));
  for (const auto& [place, parameters] : elsewhere) {
    load_parameters(parameters, io::CheckpointTensors(place), "",
                    {.may_be_unused = [](std::string_view) { return true; }},
                    fmt::format("{}: the weights do not match {}", place.string(), (folder / "config.json").string()));
  }
  for (const auto& parameter : differences.missing) draw_initial_values(parameter, settings.seed);
  LoadedWeights loaded{differences.missing, differences.resized, {}};
  std::ranges::copy_if(differences.unused, std::back_inserter(loaded.left_out),
                       [](const std::string& name) { return !may_be_unused(name); });
  return loaded;
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

void draw_initial_values(const nn::Parameter& parameter, uint64_t seed) {
  const at::NoGradGuard no_gradients;
  const auto& [mean, deviation, is_uniform] = parameter.initial;
  if (deviation == 0 && !parameter.quantized) {
    parameter.tensor.detach().fill_(mean);
    return;
  }
  auto generator = at::make_generator<at::CPUGeneratorImpl>(stream_seed(seed, parameter.name));
  at::Tensor values = at::empty(parameter.sizes(), at::kFloat);
  if (is_uniform) {
    values.uniform_(mean - deviation, mean + deviation, generator);
  } else {
    values.normal_(mean, deviation, generator);
  }
  parameter.set_values(values);
}

io::NamedTensors weights_of(const VisionLanguageModel& model) {
  io::NamedTensors weights;
  for (const auto& parameter : own_parameters(model)) {
    weights.emplace_back(model.checkpoint_name(parameter.name), parameter.tensor.detach());
  }
  return weights;
}

void save_checkpoint(const VisionLanguageModel& model, const std::filesystem::path& source,
                     const std::filesystem::path& out, int64_t max_shard_bytes) {
  if (model.parameters().quantization() != nn::Quantization::kNone) {
    throw usage_error(
        "{}: the weights of the model are quantised (model.quantization), so they are not written as a checkpoint; "
        "save "
        "its adapter, and merge that with the base's own weights (vlmtrain merge)",
        out.string());
  }
  auto config = io::read_ordered_json(source / "config.json");
  const char* const dtype_key = config.contains("torch_dtype") ? "torch_dtype" : "dtype";
  config[dtype_key] = dtype_name(model.parameters().options().dtype().toScalarType());
  model.complete_config(config);
  io::write_file(out / "config.json", config.dump(2) + "\n");
  copy_companion_files(source, out);
  auto weights = weights_of(model);
  model.complete_weights(weights);
  io::write_checkpoint_tensors(out, weights, max_shard_bytes);
}

}  // namespace vlmtrain::models
