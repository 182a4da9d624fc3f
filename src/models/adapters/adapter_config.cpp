#include "models/adapters/adapter_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <set>
#include <string_view>

#include "models/adapters/adapter_check.h"
#include "models/adapters/adapter_format.h"
#include "models/checkpoints/config_checks.h"
#include "models/checkpoints/load_weights.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/hub/snapshot_path.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/weights/weight_settings.h"

namespace vlmtrain::models {

namespace {

constexpr std::array<std::string_view, 14> kSupportedAdapterKeys{"peft_type",
                                                                 "base_model_name_or_path",
                                                                 "r",
                                                                 "lora_alpha",
                                                                 "lora_dropout",
                                                                 "use_rslora",
                                                                 "use_dora",
                                                                 "bias",
                                                                 "target_modules",
                                                                 "modules_to_save",
                                                                 "rank_pattern",
                                                                 "alpha_pattern",
                                                                 "ensure_weight_tying",
                                                                 "init_lora_weights"};

/// Keys of peft's LoraConfig (0.21.2) that change an adapter's computation or contents and are not
/// supported.
constexpr std::array<std::string_view, 12> kUnsupportedAdapterKeys{"layer_replication", "trainable_token_indices",
                                                                   "target_parameters", "alora_invocation_tokens",
                                                                   "lora_bias",         "use_qalora",
                                                                   "use_bdlora",        "arrow_config",
                                                                   "kasa_config",       "monteclora_config",
                                                                   "megatron_config",   "enable_lora"};

constexpr std::string_view kInitializationOnlyReason =
    "initialization only; init_lora_weights decides whether it changed the base";
constexpr std::string_view kRedundantListReason = "the adapter's tensors determine its modules";
constexpr std::string_view kMetadataReason = "metadata of the program that wrote it";
constexpr std::string_view kTrainingOnlyReason = "changes how gradients are computed, not what the adapter computes";

constexpr std::array kHarmlessAdapterKeys{
    io::HarmlessKey{"auto_mapping", kMetadataReason},
    io::HarmlessKey{"peft_version", kMetadataReason},
    io::HarmlessKey{"revision", kMetadataReason},
    io::HarmlessKey{"task_type", kMetadataReason},
    io::HarmlessKey{"inference_mode", "whether PEFT trains what it loads"},
    io::HarmlessKey{"exclude_modules", kRedundantListReason},
    io::HarmlessKey{"layers_to_transform", kRedundantListReason},
    io::HarmlessKey{"layers_pattern", kRedundantListReason},
    io::HarmlessKey{"fan_in_fan_out", "PEFT sets it to false for Linears, and all modules are Linears"},
    io::HarmlessKey{"megatron_core", "used with megatron_config only"},
    io::HarmlessKey{"qalora_group_size", "used with use_qalora only"},
    io::HarmlessKey{"loftq_config", kInitializationOnlyReason},
    io::HarmlessKey{"eva_config", kInitializationOnlyReason},
    io::HarmlessKey{"corda_config", kInitializationOnlyReason},
    io::HarmlessKey{"lora_ga_config", kInitializationOnlyReason},
    io::HarmlessKey{"velora_config", kTrainingOnlyReason},
    io::HarmlessKey{"runtime_config", "device on which PEFT initializes DoRA"},
    io::HarmlessKey{"lora_dtype", "ms-swift's: the tensors have their own types"},
    io::HarmlessKey{"lorap_lr_ratio", "ms-swift's: learning rate of lora_B"},
    io::HarmlessKey{"lorap_emb_lr", "ms-swift's: learning rate of embeddings"},
    io::HarmlessKey{"merge_weights", "PEFT before 0.3: whether layers merge in evaluation mode"},
};

/// Returns whether a target has a numbered component and therefore names a single module, such as
/// "model.layers.3.q_proj", instead of a suffix of many, such as "q_proj".
bool is_single_module_path(const std::string& target) {
  const auto is_number = [](std::string_view text) {
    return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  };
  for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = target.find('.', begin);
    if (is_number(std::string_view(target).substr(begin, end - begin))) return true;
  }
  return false;
}

bool is_enabled(const nlohmann::json& value) {
  return !io::is_empty_value(value) && value != false && value != 0;
}

void reject_unsupported_adapter_settings(const nlohmann::json& config, const std::string& source) {
  const auto peft_type = io::get<std::string>(config, "peft_type", source);
  if (peft_type != "LORA")
    throw data_error("{}: peft_type {} is not supported; use an adapter with peft_type LORA", source, peft_type);
  const auto bias = io::get_or<std::string>(config, "bias", "none", source);
  if (bias != "none")
    throw data_error("{}: trained biases (bias: {}) are not supported; train the adapter with bias none", source, bias);
  for (const auto key : kUnsupportedAdapterKeys) {
    const auto it = config.find(key);
    if (it == config.end() || !is_enabled(*it)) continue;
    throw data_error("{}: {} is set to {}, which is not supported; merge the adapter with peft, and use the result",
                     source, key, io::make_json_excerpt(*it));
  }
  // These initializations (PiSSA, OLoRA, …) change the base weights as well.
  const auto init = config.value("init_lora_weights", nlohmann::json());
  constexpr std::array kBasePreservingInits{"gaussian", "orthogonal", "eva", "mica"};
  if (init.is_string() && std::ranges::find(kBasePreservingInits, init) == kBasePreservingInits.end()) {
    throw data_error("{}: init_lora_weights {} changes the base weights; convert the adapter to plain LoRA with peft",
                     source, io::make_json_excerpt(init));
  }
}

/// Warns once per process and file, since an adapter is read several times while a model is loaded.
void warn_about_unread_adapter_keys(const nlohmann::json& config, const std::string& source) {
  std::vector<std::string_view> recognized_keys(kSupportedAdapterKeys.begin(), kSupportedAdapterKeys.end());
  recognized_keys.insert(recognized_keys.end(), kUnsupportedAdapterKeys.begin(), kUnsupportedAdapterKeys.end());
  const auto unread_keys = io::find_unread_keys(config, recognized_keys, kHarmlessAdapterKeys);
  if (unread_keys.empty()) return;
  static std::mutex mutex;
  static std::set<std::string> warned_sources;
  const std::lock_guard lock(mutex);
  if (!warned_sources.insert(source).second) return;
  spdlog::warn("{}: unknown keys are ignored: {}; check which program trained the adapter", source,
               fmt::join(unread_keys, ", "));
}

std::vector<std::string> read_modules_to_save(const nlohmann::json& config, const std::string& source) {
  const auto modules = config.value("modules_to_save", nlohmann::json());
  if (modules.is_null()) return {};
  if (modules.is_string()) return {modules.get<std::string>()};
  return io::get<std::vector<std::string>>(config, "modules_to_save", source);
}

nlohmann::json read_patterns(const nlohmann::json& config, const char* key, const std::string& source) {
  const auto it = config.find(key);
  if (it == config.end() || io::is_empty_value(*it)) return nlohmann::json::object();
  if (!it->is_object()) {
    throw data_error("{}: {} is {}; PEFT writes an object of modules' names and numbers", source, key,
                     io::make_json_excerpt(*it));
  }
  return *it;
}

/// An entry of rank_pattern or alpha_pattern.
struct ModulePattern {
  std::string text;
  nn::LoraTarget target;
  double value;
};

std::vector<ModulePattern> parse_module_patterns(std::string_view key, const nlohmann::json& patterns,
                                                 const std::string& source) {
  std::vector<ModulePattern> result;
  for (const auto& [text, value] : patterns.items()) {
    try {
      // As in peft's get_pattern_key().
      result.push_back({text, nn::LoraTarget("(.*\\.)?(" + text + ")"), io::get<double>(patterns, text, source)});
    } catch (const UserError& error) {
      throw data_error("{}: {}: \"{}\" is ignored: {}", source, key, text, error.what());
    }
  }
  return result;
}

/// Throws UserError (kBadData) if `patterns` gives one of `paths` a value other than
/// `default_value`. The first matching pattern counts.
void check_pattern_values(std::string_view key, const nlohmann::json& patterns, double default_value,
                          const std::vector<std::string>& paths, const std::string& source) {
  const auto module_patterns = parse_module_patterns(key, patterns, source);
  for (const auto& path : paths) {
    const auto match = std::ranges::find_if(module_patterns,
                                            [&](const ModulePattern& pattern) { return pattern.target.matches(path); });
    if (match == module_patterns.end() || match->value == default_value) continue;
    throw data_error(
        "{}: {} \"{}\" gives {} {}, and other modules have {}; such an adapter is not supported; merge it with peft, "
        "and use the result",
        source, key, match->text, path, match->value, default_value);
  }
}

}  // namespace

void AdapterConfig::check_target_modules(const std::vector<std::string>& adapted_paths, const AdaptableModules* modules,
                                         const std::string& source) const {
  if (!target_modules.is_array()) return;
  std::vector<std::string> problems;
  for (const auto& target : target_modules) {
    if (!target.is_string() || !is_single_module_path(target)) continue;
    const auto name = target.get<std::string>();
    const std::string resolved_path = modules != nullptr ? modules->resolve_module_path(name) : name;
    const bool has_tensors = std::ranges::any_of(adapted_paths, [&](const std::string& path) {
      return path == name || path == resolved_path || path.ends_with(fmt::format(".{}", name));
    });
    if (!has_tensors) problems.push_back(fmt::format("missing: {}{}.{}", kAdapterTensorPrefix, name, kLoraASuffix));
  }
  throw_if_problems(fmt::format("{}: its target_modules have no tensors in {}", source, kAdapterWeightsName), problems);
  if (modules != nullptr) warn_about_partial_targets(adapted_paths, *modules, source);
}

void AdapterConfig::warn_about_partial_targets(const std::vector<std::string>& adapted_paths,
                                               const AdaptableModules& modules, const std::string& source) const {
  std::vector<std::string> linears_without_adapter;
  for (const std::string& linear : modules.linears()) {
    const bool is_target = std::ranges::any_of(target_modules, [&](const nlohmann::json& target) {
      return target.is_string() && linear.ends_with(fmt::format(".{}", target.get_ref<const std::string&>()));
    });
    if (is_target && std::ranges::find(adapted_paths, linear) == adapted_paths.end())
      linears_without_adapter.push_back(linear);
  }
  if (linears_without_adapter.empty()) return;
  spdlog::warn(
      "{}: {} of the Linears in target_modules have no tensors in {} and keep the base weights, such as {}; check that "
      "the adapter was saved completely",
      source, linears_without_adapter.size(), kAdapterWeightsName, linears_without_adapter.front());
}

void AdapterConfig::check_rank_and_alpha_patterns(const std::vector<std::string>& paths,
                                                  const std::string& source) const {
  check_pattern_values("rank_pattern", rank_pattern, static_cast<double>(rank), paths, source);
  check_pattern_values("alpha_pattern", alpha_pattern, alpha, paths, source);
}

AdapterConfig read_adapter_config(const std::filesystem::path& folder) {
  const auto path = folder / kAdapterConfigName;
  const std::string source = path.string();
  if (!std::filesystem::exists(path)) {
    // `folder` may be a run: the error of read_model_config() names its newest checkpoint.
    if (std::filesystem::exists(folder / "checkpoints")) read_model_config(folder);
    throw make_missing_adapter_error(path);
  }
  const auto json = io::read_json(path);
  reject_unsupported_adapter_settings(json, source);
  warn_about_unread_adapter_keys(json, source);
  AdapterConfig config{.rank = io::get<int64_t>(json, "r", source),
                       .alpha = io::get<double>(json, "lora_alpha", source),
                       .dropout = io::get_or<double>(json, "lora_dropout", 0.0, source),
                       .use_rslora = io::get_or<bool>(json, "use_rslora", false, source),
                       .use_dora = io::get_or<bool>(json, "use_dora", false, source),
                       .modules_to_save = read_modules_to_save(json, source),
                       .ensure_weight_tying = io::get_or<bool>(json, "ensure_weight_tying", false, source),
                       .target_modules = json.value("target_modules", nlohmann::json()),
                       .rank_pattern = read_patterns(json, "rank_pattern", source),
                       .alpha_pattern = read_patterns(json, "alpha_pattern", source)};
  check_size(config.rank, "r", kMaxLayerWidth, source);
  check_number(config.alpha, "lora_alpha", {.exclusive_min = 0, .max = 1e9}, source);
  if (!(config.dropout >= 0 && config.dropout < 1)) {
    throw data_error("{}: lora_dropout is {}; it must be at least 0 and below 1", source, config.dropout);
  }
  return config;
}

namespace {

/// Returns what adapter_config.json stores for a base checkpoint: its name and revision on the Hub if
/// it is in the Hugging Face cache, else its absolute path without a revision.
std::pair<std::string, nlohmann::ordered_json> describe_base(const std::filesystem::path& base) {
  const std::filesystem::path path = std::filesystem::absolute(base).lexically_normal();
  if (const auto repo = hub::parse_snapshot_path(path)) return {repo->id, repo->revision};
  return {path.string(), nullptr};
}

nlohmann::ordered_json to_json_number(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e9) return static_cast<int64_t>(value);
  return value;
}

}  // namespace

std::string make_adapter_config(const VisionLanguageModel& model, const std::filesystem::path& base) {
  const nn::ParameterStore& store = model.parameters();
  VLMTRAIN_CHECK(store.lora().has_value(), "a model without adapters");
  const nn::LoraSettings& lora = *store.lora();
  auto targets = nlohmann::ordered_json::array();
  for (const auto& linear : store.linears()) {
    if (linear.has_adapter) targets.push_back(linear.path);
  }
  const auto modules =
      lora.modules_to_save.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(lora.modules_to_save);
  const auto [base_name, revision] = describe_base(base);
  nlohmann::ordered_json config{{"base_model_name_or_path", base_name},
                                {"bias", "none"},
                                {"ensure_weight_tying", saves_tied_output(model)},
                                {"fan_in_fan_out", false},
                                {"inference_mode", true},
                                {"init_lora_weights", true},
                                {"lora_alpha", to_json_number(lora.alpha)},
                                {"lora_dropout", lora.dropout},
                                {"modules_to_save", modules},
                                {"peft_type", "LORA"},
                                {"r", lora.rank},
                                {"target_modules", targets},
                                {"task_type", nullptr},
                                {"use_dora", lora.use_dora},
                                {"use_rslora", lora.use_rslora}};
  if (revision.is_string()) config["revision"] = revision;
  return io::to_json_string(config, 2) + "\n";
}

LoadSettings make_base_load_settings(const nn::LoraSettings& lora) {
  // The base may lack modules that the adapter saves in full, or have them with another number of
  // rows.
  return {.allow_missing = lora.modules_to_save, .allow_embedding_resize = !lora.modules_to_save.empty()};
}

}  // namespace vlmtrain::models
