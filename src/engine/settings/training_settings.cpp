#include "vlmtrain/engine/settings/training_settings.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "engine/settings/enum_names.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"

namespace vlmtrain::engine {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(AdamWSettings, beta1, beta2, epsilon)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MuonSettings, momentum, ns_steps, lr_adjustment)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LossScaleSettings, init_scale, dynamic, growth_interval)

namespace {

using nlohmann::ordered_json;

/// All rules.
constexpr std::array kOptimizers{
    OptimizerInfo{
        .kind = OptimizerKind::kAdamW, .name = "adamw", .is_elementwise = true, .supports_compressed_moments = true},
    OptimizerInfo{
        .kind = OptimizerKind::kMuon, .name = "muon", .is_elementwise = false, .supports_compressed_moments = false},
};

const std::vector<std::pair<std::string, MasterWeights>> kMasterWeightsNames{
    {"fp32", MasterWeights::kFp32}, {"split", MasterWeights::kSplit}, {"stochastic", MasterWeights::kStochastic}};
const std::vector<std::pair<std::string, OptimizerStateDtype>> kOptimizerStateDtypeNames{
    {"fp32", OptimizerStateDtype::kFp32}, {"bf16", OptimizerStateDtype::kBf16}, {"8bit", OptimizerStateDtype::k8Bit}};

const std::vector<std::pair<std::string, MuonLrAdjustment>> kMuonLrAdjustmentNames{
    {"match_rms_adamw", MuonLrAdjustment::kMatchRmsAdamW}, {"original", MuonLrAdjustment::kOriginal}};

/// torch.optim.Muon refuses more.
constexpr int64_t kMaxNsSteps = 99;

// Keys of an entry of training.parameter_groups.
constexpr const char* kGroupParameters = "parameters";
constexpr const char* kGroupLearningRate = "learning_rate";
constexpr const char* kGroupWeightDecay = "weight_decay";
constexpr const char* kGroupOptimizer = "optimizer";

std::vector<std::pair<std::string, OptimizerKind>> list_optimizer_names() {
  std::vector<std::pair<std::string, OptimizerKind>> names;
  names.reserve(kOptimizers.size());
  for (const auto& entry : kOptimizers) names.emplace_back(entry.name, entry.kind);
  return names;
}

std::optional<OptimizerKind> parse_optimizer(const ordered_json& value) {
  for (const auto& entry : kOptimizers) {
    if (value == entry.name) return entry.kind;
  }
  return std::nullopt;
}

ordered_json groups_to_json(const std::vector<ParameterGroupSettings>& groups) {
  auto json = ordered_json::array();
  for (const auto& group : groups) {
    ordered_json entry{{kGroupParameters, group.parameters}};
    if (group.learning_rate) entry[kGroupLearningRate] = *group.learning_rate;
    if (group.weight_decay) entry[kGroupWeightDecay] = *group.weight_decay;
    if (group.optimizer) entry[kGroupOptimizer] = get_optimizer_info(*group.optimizer).name;
    json.push_back(std::move(entry));
  }
  return json;
}

/// Sets one value of a group. Returns an error message, or nothing.
std::optional<std::string> set_group_value(ParameterGroupSettings& group, const std::string& key,
                                           const ordered_json& value) {
  const auto is_text = [](const ordered_json& text) { return text.is_string() && !text.get<std::string>().empty(); };
  if (key == kGroupParameters) {
    const ordered_json patterns = value.is_array() ? value : ordered_json::array({value});
    if (patterns.empty() || !std::ranges::all_of(patterns, is_text))
      return fmt::format("{} must be a pattern or a list of patterns", key);
    group.parameters = patterns.get<std::vector<std::string>>();
    return std::nullopt;
  }
  if (key == kGroupOptimizer) {
    group.optimizer = parse_optimizer(value);
    if (group.optimizer) return std::nullopt;
    std::vector<std::string> names;
    names.reserve(kOptimizers.size());
    for (const auto& [name, kind] : list_optimizer_names()) names.push_back(name);
    return fmt::format("{} must be one of {}", key, fmt::join(names, ", "));
  }
  if (key != kGroupLearningRate && key != kGroupWeightDecay) {
    return fmt::format("unknown key {}; expected {}, {}, {} or {}", key, kGroupParameters, kGroupLearningRate,
                       kGroupWeightDecay, kGroupOptimizer);
  }
  if (!value.is_number() || !(value.get<double>() >= 0) || !std::isfinite(value.get<double>()))
    return fmt::format("{} must be a finite number of at least 0", key);
  (key == kGroupLearningRate ? group.learning_rate : group.weight_decay) = value.get<double>();
  return std::nullopt;
}

std::optional<std::string> parse_groups(const ordered_json& value, std::vector<ParameterGroupSettings>& groups) {
  if (!value.is_array()) return "expected a list of sections";
  std::vector<ParameterGroupSettings> parsed_groups;
  for (const auto& entry : value) {
    const size_t number = parsed_groups.size() + 1;
    auto& group = parsed_groups.emplace_back();
    if (!entry.is_object()) return fmt::format("entry {}: expected a section with {}", number, kGroupParameters);
    for (const auto& [key, entry_value] : entry.items()) {
      if (const auto error = set_group_value(group, key, entry_value))
        return fmt::format("entry {}: {}", number, *error);
    }
    if (group.parameters.empty()) return fmt::format("entry {}: {} is missing", number, kGroupParameters);
    if (entry.size() == 1) {
      return fmt::format("entry {}: sets nothing; add {}, {} or {}", number, kGroupLearningRate, kGroupWeightDecay,
                         kGroupOptimizer);
    }
  }
  groups = std::move(parsed_groups);
  return std::nullopt;
}

void declare_muon_options(OptionTable& table, MuonSettings& settings) {
  table.add(keys::training::kMuonMomentum, settings.momentum,
            {.doc = "Muon's momentum, with Nesterov's correction.", .resume = ResumeRule::kIfRequested},
            in_half_open_range(0.0, 1.0));
  table.add(keys::training::kMuonNsSteps, settings.ns_steps,
            {.doc = "Number of Newton-Schulz iterations that orthogonalize Muon's update.",
             .resume = ResumeRule::kIfRequested,
             .hints = {{.names = {"ns_steps", "muon_n_steps"}}}},
            between<int64_t>(1, kMaxNsSteps));
  table.add_enum(
      keys::training::kMuonAdjustLr, settings.lr_adjustment, kMuonLrAdjustmentNames,
      {.doc = "Factor of Muon's learning rate for a matrix with r rows and c columns. match_rms_adamw: 0.2 · √max(r, "
              "c), so that learning rate and weight decay of AdamW fit. original: √max(1, r / c).",
       .resume = ResumeRule::kIfRequested,
       .hints = {{.names = {"adjust_lr_fn", "muon_adjust_lr_fn"}}}});
}

void declare_adamw_options(OptionTable& table, AdamWSettings& settings) {
  table.add(keys::training::kAdamBeta1, settings.beta1,
            {.doc = "AdamW's decay of the first moment.",
             .resume = ResumeRule::kIfRequested,
             .hints = {{.names = {"betas"}, .text = "training.adam_beta1 and training.adam_beta2"},
                       {.names = {"beta1", "adam_beta_1"}}}},
            in_half_open_range(0.0, 1.0));
  table.add(keys::training::kAdamBeta2, settings.beta2,
            {.doc = "AdamW's decay of the second moment.",
             .resume = ResumeRule::kIfRequested,
             .hints = {{.names = {"beta2", "adam_beta_2"}}}},
            in_half_open_range(0.0, 1.0));
  table.add(keys::training::kAdamEpsilon, settings.epsilon,
            {.doc = "AdamW's epsilon.",
             .resume = ResumeRule::kIfRequested,
             .hints = {{.names = {"adam_eps", "eps", "epsilon"}}}},
            exceeds(0.0));
}

}  // namespace

const OptimizerInfo& get_optimizer_info(OptimizerKind kind) {
  const auto* const entry = std::ranges::find(kOptimizers, kind, &OptimizerInfo::kind);
  VLMTRAIN_CHECK(entry != kOptimizers.end(), "unknown optimizer {}", static_cast<int>(kind));
  return *entry;
}

std::string to_string(MasterWeights master_weights) {
  return find_enum_name(kMasterWeightsNames, master_weights);
}

std::optional<MasterWeights> parse_master_weights(std::string_view name) {
  return find_enum_value(kMasterWeightsNames, name);
}

std::string to_string(OptimizerStateDtype state_dtype) {
  return find_enum_name(kOptimizerStateDtypeNames, state_dtype);
}

bool OptimizerSettings::uses(OptimizerKind rule) const {
  return kind == rule ||
         std::ranges::any_of(groups, [&](const ParameterGroupSettings& group) { return group.optimizer == rule; });
}

bool OptimizerSettings::needs_whole_parameters() const {
  return std::ranges::any_of(kOptimizers,
                             [this](const OptimizerInfo& entry) { return !entry.is_elementwise && uses(entry.kind); });
}

bool OptimizerSettings::supports_compressed_moments() const {
  return std::ranges::all_of(kOptimizers, [this](const OptimizerInfo& entry) {
    return entry.supports_compressed_moments || !uses(entry.kind);
  });
}

MasterWeights OptimizerSettings::choose_master_weights(bool is_cuda, bool has_bf16_weights) const {
  if (!has_bf16_weights) return MasterWeights::kFp32;
  return master_weights.value_or(is_cuda ? MasterWeights::kSplit : MasterWeights::kFp32);
}

std::vector<std::string_view> list_unused_rule_keys(const OptimizerSettings& settings) {
  std::vector<std::string_view> unused_keys;
  if (!settings.uses(OptimizerKind::kMuon))
    unused_keys = {keys::training::kMuonMomentum, keys::training::kMuonNsSteps, keys::training::kMuonAdjustLr};
  return unused_keys;
}

void check_optimizer_settings(const OptimizerSettings& settings) {
  if (settings.state_dtype == OptimizerStateDtype::kFp32) return;
  for (const auto& entry : kOptimizers) {
    if (entry.supports_compressed_moments || !settings.uses(entry.kind)) continue;
    const std::string_view key =
        settings.kind == entry.kind ? keys::training::kOptimizer : keys::training::kParameterGroups;
    throw usage_error("{}: {} is not supported with the optimizer {} ({}), whose moments are in fp32; set {}=fp32",
                      keys::training::kOptimizerStates, to_string(settings.state_dtype), entry.name, key,
                      keys::training::kOptimizerStates);
  }
}

void declare_options(OptionTable& table, OptimizerSettings& settings) {
  std::vector<std::pair<std::string, std::optional<MasterWeights>>> master_weights_choices{{"auto", std::nullopt}};
  master_weights_choices.insert(master_weights_choices.end(), kMasterWeightsNames.begin(), kMasterWeightsNames.end());
  table.add_enum(
      keys::training::kOptimizer, settings.kind, list_optimizer_names(),
      {.doc = "Optimizer. muon: Muon for the weights of Linears and their adapters, AdamW for all other parameters "
              "(embeddings, output projection, norms, biases).",
       .resume = ResumeRule::kIfRequested,
       .hints = {{.names = {"optim", "optimizer_name", "optim_type", "use_muon"},
                  .text =
                      "training.optimizer: adamw or muon; training.optimizer_states: 8bit stores AdamW's moments in "
                      "8 bits"}}});
  declare_adamw_options(table, settings.adamw);
  declare_muon_options(table, settings.muon);
  table.add(keys::training::kWeightDecay, settings.weight_decay,
            {.doc = "Decoupled weight decay. Applies only to tensors with two or more dimensions.",
             .resume = ResumeRule::kIfRequested},
            at_least(0.0));
  table.add(keys::training::kNoWeightDecay, settings.no_weight_decay,
            {.doc = "Parameters without weight decay. Each entry is a part of a name by whole components "
                    "(`embed_tokens`, `layers.0`), or a regular expression for the whole name.",
             .resume = ResumeRule::kIfRequested,
             .hints = {{.names = {"no_decay_params", "no_decay_keywords", "skip_weight_decay"}}}});
  table.add_structured_option(
      keys::training::kParameterGroups, "list of sections", [&settings] { return groups_to_json(settings.groups); },
      [&settings](const ordered_json& value) { return parse_groups(value, settings.groups); },
      {.doc = "Settings of parameters by name. Each entry has `parameters`, a pattern as in "
              "`training.no_weight_decay` or a list of them, and at least one of `learning_rate` (peak), "
              "`weight_decay` (also of 1-D tensors) and `optimizer`. A parameter may match one entry only.",
       .resume = ResumeRule::kIfRequested,
       .hints = {{.names = {"param_groups", "layer_lrs"}}}});
  table.add_enum(
      keys::training::kOptimizerStates, settings.state_dtype, kOptimizerStateDtypeNames,
      {.doc = "Data type of AdamW's moments. bf16: rounded stochastically. 8bit: block-wise and dynamic, as in "
              "bitsandbytes; embeddings in fp32. Tensors with fewer than 4096 elements are always in fp32.",
       .resume = ResumeRule::kIfRequested});
  table.add(keys::training::kCompressEmbeddingStates, settings.compresses_embedding_states,
            {.doc = "Whether 8-bit optimizer states include those of embeddings. bitsandbytes keeps them in fp32.",
             .resume = ResumeRule::kIfRequested});
  table.add_enum(
      keys::training::kMasterWeights, settings.master_weights, master_weights_choices,
      {.doc = "Format of the fp32 master weights of bf16 weights (how-to/optimizers.md). split: in two halves, the "
              "same values. stochastic: none. `auto`: that of a resumed run; split in new bf16 runs on CUDA, else "
              "fp32.",
       .resume = ResumeRule::kIfRequested});
}

void to_json(nlohmann::json& json, const OptimizerSettings& settings) {
  json = {{"kind", settings.kind},
          {"adamw", settings.adamw},
          {"muon", settings.muon},
          {"weight_decay", settings.weight_decay},
          {"max_grad_norm", settings.max_grad_norm},
          {"loss_scale", settings.loss_scale ? nlohmann::json(*settings.loss_scale) : nlohmann::json()},
          {"state_dtype", settings.state_dtype},
          {"compresses_embedding_states", settings.compresses_embedding_states},
          {"master_weights", settings.master_weights ? nlohmann::json(*settings.master_weights) : nlohmann::json()},
          {"seed", settings.seed},
          {"groups", groups_to_json(settings.groups)},
          {"no_weight_decay", settings.no_weight_decay},
          {"loraplus_lr_ratio", settings.loraplus_lr_ratio},
          {"allows_unmatched_patterns", settings.allows_unmatched_patterns}};
}

void from_json(const nlohmann::json& json, OptimizerSettings& settings) {
  json.at("kind").get_to(settings.kind);
  json.at("adamw").get_to(settings.adamw);
  json.at("muon").get_to(settings.muon);
  json.at("weight_decay").get_to(settings.weight_decay);
  json.at("max_grad_norm").get_to(settings.max_grad_norm);
  const auto& loss_scale = json.at("loss_scale");
  settings.loss_scale = loss_scale.is_null() ? std::nullopt : std::optional{loss_scale.get<LossScaleSettings>()};
  json.at("state_dtype").get_to(settings.state_dtype);
  json.at("compresses_embedding_states").get_to(settings.compresses_embedding_states);
  const auto& master_weights = json.at("master_weights");
  settings.master_weights =
      master_weights.is_null() ? std::nullopt : std::optional{master_weights.get<MasterWeights>()};
  json.at("seed").get_to(settings.seed);
  const auto error = parse_groups(json.at("groups"), settings.groups);
  VLMTRAIN_CHECK(!error, "invalid parameter groups: {}", *error);
  json.at("no_weight_decay").get_to(settings.no_weight_decay);
  json.at("loraplus_lr_ratio").get_to(settings.loraplus_lr_ratio);
  json.at("allows_unmatched_patterns").get_to(settings.allows_unmatched_patterns);
}

}  // namespace vlmtrain::engine
