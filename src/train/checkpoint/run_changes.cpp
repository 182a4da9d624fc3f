#include "vlmtrain/train/run_changes.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/adapter.h"

namespace vlmtrain::train {

namespace {

/// Keys that do not affect training results, or affect them only by rounding or other random
/// numbers (training.kernels), and keys that error messages suggest changing before resuming, such
/// as data.max_length.
constexpr std::string_view kAlwaysAllowedKeys[]{"data.eval",
                                                "data.ignore_keys",
                                                "data.image_root",
                                                "data.outside_image_root",
                                                "data.max_length",
                                                "data.on_too_long",
                                                "data.max_images_per_sample",
                                                "data.image_max_pixels",
                                                "data.video_fps",
                                                "data.video_max_frames",
                                                "data.volume.series",
                                                "data.volume.max_frames",
                                                "data.volume.slices",
                                                "data.on_bad_sample",
                                                "data.check_at_start",
                                                "data.num_workers",
                                                "training.micro_batch_size",
                                                "training.kernels",
                                                "training.resume",
                                                "training.eval_steps",
                                                "training.eval_samples",
                                                "training.eval_answers",
                                                "training.eval_max_new_tokens",
                                                "training.eval_batch_size",
                                                "training.best_metric",
                                                "training.early_stopping_patience",
                                                "eval.metrics",
                                                "eval.numeric_tolerance",
                                                "memory.limit_gb",
                                                "memory.mode",
                                                "memory.recompute",
                                                "memory.vision_tiles_per_pass",
                                                "memory.loss_chunk_rows",
                                                "memory.expandable_segments",
                                                "memory.allow_splits",
                                                "memory.look_ahead",
                                                "memory.empty_cache_above",
                                                "distributed.sharding",
                                                "distributed.rendezvous_seconds",
                                                "output.dir",
                                                "output.dtype",
                                                "output.save_steps",
                                                "output.save_total_limit",
                                                "output.keep_best",
                                                "output.async_save",
                                                "output.sample_predictions",
                                                "output.sample_predictions_share",
                                                "output.report",
                                                "output.tensorboard",
                                                "output.log_samples"};

/// Keys that affect the results of later steps.
constexpr std::string_view kAllowedIfRequestedKeys[]{"model.freeze_vision_tower",
                                                     "model.freeze_projector",
                                                     "model.freeze_language_model",
                                                     "model.freeze_mask_encoder",
                                                     "model.quantization",
                                                     "lora.dropout",
                                                     "data.train",
                                                     "data.task_shares",
                                                     "data.curriculum",
                                                     "data.packing",
                                                     "data.pack_max_tokens",
                                                     "data.pack_max_images",
                                                     "data.pack_max_tiles",
                                                     "data.columns",
                                                     "data.text_window_tokens",
                                                     "data.chat_template",
                                                     "data.chat_template_date",
                                                     "data.video_layout",
                                                     "data.train_on",
                                                     "data.boxes.in",
                                                     "data.boxes.pattern",
                                                     "data.boxes.out",
                                                     "data.boxes.orientation",
                                                     "training.global_batch_size",
                                                     "training.max_steps",
                                                     "training.epochs",
                                                     "training.learning_rate",
                                                     "training.vision_learning_rate",
                                                     "training.projector_learning_rate",
                                                     "training.mask_learning_rate",
                                                     "training.text_loss_weight",
                                                     "training.mask_bce_weight",
                                                     "training.mask_dice_weight",
                                                     "data.augment",
                                                     "data.mask_image_size",
                                                     "data.volume.as",
                                                     "data.volume.size",
                                                     "data.volume.spacing",
                                                     "data.volume.normalization",
                                                     "data.volume.percentiles",
                                                     "data.volume.window",
                                                     "data.volume.dtype",
                                                     "data.volume.plane",
                                                     "training.adam_beta1",
                                                     "training.adam_beta2",
                                                     "training.adam_epsilon",
                                                     "training.weight_decay",
                                                     "training.warmup_ratio",
                                                     "training.lr_scheduler",
                                                     "training.max_grad_norm",
                                                     "training.precision",
                                                     "training.loss_scale",
                                                     "training.loss_scale_growth_steps",
                                                     "training.optimizer_states",
                                                     "training.global_batch_tokens",
                                                     "training.batch_scaling",
                                                     "training.reference_batch_size",
                                                     "training.task_weighting",
                                                     "training.task_weights",
                                                     "training.gradnorm_alpha",
                                                     "training.gradnorm_learning_rate",
                                                     "training.gradient_conflicts",
                                                     "training.schedule_from"};

/// Keys that determine the parameters of the model and the random numbers of the run.
constexpr std::string_view kNeverAllowedKeys[]{
    "model.path",    "model.adapter", "model.allow_missing", "model.allow_unexpected", "model.resize_embeddings",
    "lora.rank",     "lora.alpha",    "lora.target_modules", "lora.modules_to_save",   "lora.use_rslora",
    "lora.use_dora", "training.seed"};

bool contains_key(std::span<const std::string_view> keys, std::string_view key) {
  return std::ranges::find(keys, key) != keys.end();
}

/// Returns whether a fingerprint has kTotalStepsKey instead of `key`.
bool determines_total_steps(std::string_view key) {
  return key == "training.max_steps" || key == "training.epochs";
}

std::string to_text(const nlohmann::ordered_json& value) {
  return value.is_string() ? value.get<std::string>() : io::to_json_string(value);
}

std::vector<std::string> format_setting_changes(const std::vector<SettingChange>& changes) {
  std::vector<std::string> texts;
  texts.reserve(changes.size());
  for (const auto& change : changes) texts.push_back(change.text());
  return texts;
}

/// Returns advice for starting a new run from the weights of `checkpoint`.
std::string format_new_run_advice(const std::filesystem::path& checkpoint) {
  const std::string path = checkpoint.string();
  if (!models::is_adapter(checkpoint)) {
    return fmt::format("start a new run from these weights in another output.dir, with model.path={}", path);
  }
  return fmt::format(
      "start a new run in another output.dir: model.adapter={0} without a lora section continues this adapter; "
      "`vlmtrain merge --adapter {0} --out FOLDER` merges it into a checkpoint for model.path=FOLDER",
      path);
}

}  // namespace

std::span<const std::string_view> get_keys_with_policy(SettingChangePolicy policy) {
  if (policy == SettingChangePolicy::kAllowed) return kAlwaysAllowedKeys;
  return policy == SettingChangePolicy::kNever ? std::span<const std::string_view>(kNeverAllowedKeys)
                                               : kAllowedIfRequestedKeys;
}

nlohmann::ordered_json make_run_fingerprint(const Config& config, int64_t num_samples) {
  Config copy = config;
  const OptionTable options = declare_options(copy);
  nlohmann::ordered_json fingerprint;
  for (const auto keys :
       {get_keys_with_policy(SettingChangePolicy::kNever), get_keys_with_policy(SettingChangePolicy::kIfRequested)}) {
    for (const std::string_view key : keys) {
      if (!determines_total_steps(key)) fingerprint[std::string(key)] = options.format_value(key);
    }
  }
  fingerprint[kSampleCountKey] = std::to_string(num_samples);
  fingerprint[kTotalStepsKey] = std::to_string(compute_total_steps(config.training, static_cast<double>(num_samples)));
  return fingerprint;
}

std::string format_setting_value(const nlohmann::ordered_json& fingerprint, const std::string& key) {
  const auto it = fingerprint.find(key);
  return it == fingerprint.end() ? "" : to_text(*it);
}

std::string SettingChange::text() const {
  return fmt::format("{}: was {}, is {}", key, old_value, new_value);
}

std::vector<SettingChange> find_setting_changes(const nlohmann::ordered_json& saved,
                                                const nlohmann::ordered_json& current) {
  Config defaults;
  const OptionTable options = declare_options(defaults);
  std::vector<SettingChange> changes;
  for (const auto& [key, value] : current.items()) {
    const auto it = saved.find(key);
    if (it != saved.end() && *it == value) continue;
    if (it == saved.end() && key == kBaseWeightsKey) continue;  // of an older version
    const bool is_never_allowed = contains_key(kNeverAllowedKeys, key);
    if (it == saved.end() && (is_never_allowed || contains_key(kAllowedIfRequestedKeys, key)) &&
        value == options.format_value(key))
      continue;
    changes.push_back({.key = key,
                       .old_value = it == saved.end() ? "not set" : make_excerpt(to_text(*it)),
                       .new_value = make_excerpt(to_text(value)),
                       .policy = is_never_allowed ? SettingChangePolicy::kNever : SettingChangePolicy::kIfRequested});
  }
  return changes;
}

bool has_changed_key(const std::vector<SettingChange>& changes, std::span<const std::string_view> keys) {
  return std::ranges::any_of(changes, [&](const SettingChange& change) { return contains_key(keys, change.key); });
}

bool affects_samples(const std::vector<SettingChange>& changes) {
  static constexpr std::string_view kKeys[] = {
      "data.train",           "data.task_shares",    "data.curriculum",         "data.packing",  "data.pack_max_tokens",
      "data.pack_max_images", "data.pack_max_tiles", "data.text_window_tokens", kSampleCountKey, kSampleSizesKey};
  return has_changed_key(changes, kKeys);
}

bool affects_schedule(const std::vector<SettingChange>& changes) {
  static constexpr std::string_view kKeys[] = {"training.learning_rate",
                                               "training.vision_learning_rate",
                                               "training.projector_learning_rate",
                                               "training.mask_learning_rate",
                                               "training.warmup_ratio",
                                               "training.lr_scheduler",
                                               "training.schedule_from",
                                               kTotalStepsKey};
  return affects_samples(changes) || has_changed_key(changes, kKeys);
}

void check_setting_changes(const std::vector<SettingChange>& changes, ResumePolicy resume_policy,
                           const std::filesystem::path& checkpoint) {
  std::vector<std::string> never_allowed_keys;
  for (const auto& change : changes) {
    if (change.policy == SettingChangePolicy::kNever) never_allowed_keys.push_back(change.key);
  }
  if (changes.empty() || (resume_policy == ResumePolicy::kChanged && never_allowed_keys.empty())) return;
  const std::string suggestion =
      never_allowed_keys.empty() ? "training.resume=changed resumes with the new settings (docs/resuming.md)"
                                 : fmt::format("{} cannot change within a run (docs/resuming.md); {}",
                                               fmt::join(never_allowed_keys, ", "), format_new_run_advice(checkpoint));
  throw usage_error("{}: was written with other settings; use those settings, or another output.dir:\n  {}\n{}",
                    checkpoint.string(), fmt::join(format_setting_changes(changes), "\n  "), suggestion);
}

}  // namespace vlmtrain::train
