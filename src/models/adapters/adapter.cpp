#include "vlmtrain/models/adapter.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "models/adapters/adapter_layout.h"
#include "models/checkpoints/companion_files.h"
#include "models/checkpoints/load_parameters.h"
#include "models/checkpoints/saved_tensors.h"
#include "models/checkpoints/size_limits.h"
#include "models/checkpoints/weights.h"
#include "models/checkpoints/weights_fit.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/nn/lora_adapter.h"

namespace vlmtrain::models {

namespace {

/// Keys of PEFT's LoraConfig that change what an adapter computes or holds, in ways that are not supported.
constexpr const char* kUnsupportedKeys[] = {"rank_pattern",      "alpha_pattern",
                                            "layer_replication", "trainable_token_indices",
                                            "target_parameters", "alora_invocation_tokens",
                                            "fan_in_fan_out",    "lora_bias",
                                            "use_qalora",        "use_bdlora",
                                            "arrow_config",      "kasa_config",
                                            "monteclora_config", "megatron_config"};

std::vector<std::string> saved_modules(const nlohmann::json& config, const std::string& source) {
  const auto modules = config.value("modules_to_save", nlohmann::json());
  if (modules.is_null()) return {};
  std::vector<std::string> names;
  for (const auto& module : modules) {
    if (!module.is_string())
      throw data_error("{}: modules_to_save holds {}, not a name", source, io::json_excerpt(module));
    names.push_back(module);
  }
  return names;
}

/// "model.layers.3.q_proj", which is a single module, and not "q_proj", of which a model may have many or none.
bool is_of_one_block(const std::string& target) {
  const auto is_number = [](std::string_view word) {
    return !word.empty() && std::ranges::all_of(word, [](char c) { return c >= '0' && c <= '9'; });
  };
  for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = target.find('.', begin);
    if (is_number(std::string_view(target).substr(begin, end - begin))) return true;
  }
  return false;
}

/// That each module which config names for itself has its tensors: else it would be taken for one without an adapter.
void check_targets(const nlohmann::json& config, const std::vector<std::string>& adapted, const std::string& source) {
  const auto targets = config.value("target_modules", nlohmann::json());
  if (!targets.is_array()) return;
  std::vector<std::string> problems;
  for (const auto& target : targets) {
    if (!target.is_string() || !is_of_one_block(target)) continue;
    const auto name = target.get<std::string>();
    const bool has_tensors = std::ranges::any_of(
        adapted, [&](const std::string& path) { return path == name || path.ends_with("." + name); });
    if (!has_tensors) problems.push_back(fmt::format("missing: {}{}.{}", kAdapterPrefix, name, kLoraA));
  }
  refuse_differences(fmt::format("{}: its target_modules have no tensors in {}", source, kAdapterWeightsName),
                     problems);
}

bool is_set(const nlohmann::json& value) {
  if (value.is_null() || (value.is_boolean() && !value.get<bool>())) return false;
  return !value.is_structured() || !value.empty();
}

void check_supported(const nlohmann::json& config, const std::string& source) {
  const auto method = io::get<std::string>(config, "peft_type", source);
  if (method != "LORA") throw data_error("{}: peft_type {} is not supported; LORA is", source, method);
  const auto bias = io::get_or<std::string>(config, "bias", "none", source);
  if (bias != "none") throw data_error("{}: trained biases (bias: {}) are not supported; none is", source, bias);
  for (const char* key : kUnsupportedKeys) {
    if (config.contains(key) && is_set(config[key])) {
      throw data_error("{}: {} is set to {}, which is not supported; merge the adapter with peft, and take the result",
                       source, key, io::json_excerpt(config[key]));
    }
  }
  // Such starts (PiSSA, OLoRA, …) change the base weights as well.
  const auto start = config.value("init_lora_weights", nlohmann::json());
  if (start.is_string() && start != "gaussian" && start != "orthogonal" && start != "eva") {
    throw data_error("{}: init_lora_weights {} changes the base's weights; let peft convert the adapter to plain LoRA",
                     source, io::json_excerpt(start));
  }
}

/// An adapter is given for its base checkpoint at this place.
std::string path_to_write(const std::filesystem::path& base) {
  return std::filesystem::absolute(base).lexically_normal().string();
}

std::vector<nn::Parameter> adapter_parameters(const VisionLanguageModel& model) {
  std::vector<nn::Parameter> found;
  for (const auto& parameter : model.parameters().all()) {
    if (parameter.goes_with_adapter()) found.push_back(parameter);
  }
  return found;
}

nlohmann::ordered_json number(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e9) return static_cast<int64_t>(value);
  return value;
}

}  // namespace

bool is_adapter(const std::filesystem::path& folder) {
  return std::filesystem::exists(folder / kAdapterConfigName);
}

std::filesystem::path base_of_adapter(const std::filesystem::path& folder) {
  const auto source = folder / kAdapterConfigName;
  const auto base = io::get<std::string>(io::read_json(source), "base_model_name_or_path", source.string());
  if (!std::filesystem::is_directory(base)) {
    throw data_error(
        "{}: base_model_name_or_path {} is not a folder on this machine; write the folder of the adapter's base "
        "checkpoint there",
        source.string(), base);
  }
  return base;
}

nn::LoraSettings read_adapter_settings(const std::filesystem::path& folder) {
  const auto path = folder / kAdapterConfigName;
  const std::string source = path.string();
  if (!std::filesystem::exists(path)) {
    throw data_error("{} is not there; give the folder of an adapter in PEFT's layout", source);
  }
  const auto config = io::read_json(path);
  check_supported(config, source);
  const io::SafetensorsFile tensors = open_adapter(folder);
  nn::LoraSettings settings{.rank = io::get<int64_t>(config, "r", source),
                            .alpha = io::get<double>(config, "lora_alpha", source),
                            .dropout = io::get_or<double>(config, "lora_dropout", 0.0, source),
                            .use_rslora = io::get_or<bool>(config, "use_rslora", false, source),
                            .use_dora = io::get_or<bool>(config, "use_dora", false, source),
                            .target_modules = adapted_paths(tensors),
                            .modules_to_save = saved_modules(config, source),
                            .adapter = folder};
  check_targets(config, settings.target_modules, source);
  check_size(settings.rank, "r", kWidestLayer, source);
  check_number(settings.alpha, "lora_alpha", {.above = 0, .most = 1e9}, source);
  if (!(settings.dropout >= 0 && settings.dropout < 1)) {
    throw data_error("{}: lora_dropout is {}, no share of an adapter's inputs; it is from 0 to below 1", source,
                     settings.dropout);
  }
  if (settings.target_modules.empty()) {
    throw data_error("{}: holds no tensor named {}….{}", (folder / kAdapterWeightsName).string(), kAdapterPrefix,
                     kLoraA);
  }
  return settings;
}

void load_adapter(VisionLanguageModel& model, const std::filesystem::path& folder) {
  load_parameters(
      adapter_parameters(model), open_adapter(folder), kAdapterPrefix, {},
      fmt::format("{}: the adapter does not match the model; is it one for another model?", folder.string()));
}

void initialize_adapter(VisionLanguageModel& model, uint64_t seed) {
  std::unordered_map<std::string, nn::Parameter> weights;
  for (const auto& parameter : own_parameters(model)) weights.emplace(parameter.name, parameter);
  for (const auto& parameter : adapter_parameters(model)) {
    if (parameter.in_modules_to_save) continue;
    if (parameter.name.ends_with(kMagnitude)) {
      const std::string path = parameter.name.substr(0, parameter.name.size() - kMagnitude.size());
      parameter.tensor.detach().copy_(nn::row_lengths(weights.at(path + "weight").values()));
    } else {
      draw_initial_values(parameter, seed);
    }
  }
}

namespace {

/// adapter_config.json
std::string adapter_config(const VisionLanguageModel& model, const std::filesystem::path& base) {
  const nn::ParameterStore& store = model.parameters();
  VLMTRAIN_CHECK(store.lora().has_value(), "a model without adapters");
  const nn::LoraSettings& lora = *store.lora();
  auto targets = nlohmann::ordered_json::array();
  for (const auto& linear : store.linears()) {
    if (linear.has_adapter) targets.push_back(linear.path);
  }
  const bool saves_modules = !lora.modules_to_save.empty();
  const auto modules = saves_modules ? nlohmann::ordered_json(lora.modules_to_save) : nlohmann::ordered_json();
  const nlohmann::ordered_json config{{"base_model_name_or_path", path_to_write(base)},
                                      {"bias", "none"},
                                      {"ensure_weight_tying", saves_modules},
                                      {"fan_in_fan_out", false},
                                      {"inference_mode", true},
                                      {"init_lora_weights", true},
                                      {"lora_alpha", number(lora.alpha)},
                                      {"lora_dropout", lora.dropout},
                                      {"modules_to_save", modules},
                                      {"peft_type", "LORA"},
                                      {"r", lora.rank},
                                      {"target_modules", targets},
                                      {"task_type", nullptr},
                                      {"use_dora", lora.use_dora},
                                      {"use_rslora", lora.use_rslora}};
  return io::json_text(config, 2) + "\n";
}

}  // namespace

void save_adapter(const VisionLanguageModel& model, const std::filesystem::path& base,
                  const std::filesystem::path& out) {
  io::write_file(out / kAdapterConfigName, adapter_config(model, base));
  copy_companion_files(base, out);
  io::NamedTensors tensors;
  for (const auto& parameter : adapter_parameters(model)) {
    tensors.emplace_back(std::string(kAdapterPrefix) + parameter.name, parameter.tensor.detach());
  }
  io::write_safetensors(out / kAdapterWeightsName, tensors);
}

ModelToSave adapter_to_save(const VisionLanguageModel& model, const SavedWeights& how) {
  ModelToSave saved;
  saved.is_adapter = true;
  saved.files.emplace_back(kAdapterConfigName, adapter_config(model, how.base->folder()));
  for (const auto& [name, content] : how.base->files()) {
    if (name != "config.json") saved.files.emplace_back(name, content);
  }
  const auto name_of = [](const nn::Parameter& parameter) { return std::string(kAdapterPrefix) + parameter.name; };
  saved.tensors = tensors_to_save(model.parameters(), adapter_parameters(model), how, name_of);
  return saved;
}

void save_adapter(const VisionLanguageModel& model, const SavedWeights& how, const std::filesystem::path& out) {
  adapter_to_save(model, how).write(out, io::kDefaultShardBytes);
}

std::unique_ptr<VisionLanguageModel> load_model(const std::filesystem::path& folder, at::Device device,
                                                at::ScalarType dtype) {
  if (!is_adapter(folder)) {
    auto model = build_model(folder, device, dtype);
    check_weights_fit(*model, folder, memory::host_room());
    load_weights(*model, folder);
    return model;
  }
  const auto base = base_of_adapter(folder);
  nn::LoraSettings lora = read_adapter_settings(folder);
  lora.dropout = 0;
  auto model = build_model(base, device, dtype, lora);
  check_weights_fit(*model, folder, memory::host_room());
  // What the adapter brings whole, the base may lack or have in another size.
  load_weights(*model, base,
               {.allow_missing = lora.modules_to_save, .resize_embeddings = !lora.modules_to_save.empty()});
  load_adapter(*model, folder);
  return model;
}

}  // namespace vlmtrain::models
