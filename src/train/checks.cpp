#include "vlmtrain/train/checks.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "train/balance.h"
#include "train/checkpoint/resume.h"
#include "train/run/run_folder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_names.h"
#include "vlmtrain/data/index/tasks.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/models/checkpoint_info.h"
#include "vlmtrain/train/components.h"
#include "vlmtrain/train/planning.h"
#include "vlmtrain/train/run_checkpoint.h"

namespace vlmtrain::train {

void check_required_keys(const Config& config) {
  std::vector<std::string> missing_keys;
  if (config.model.path.empty()) missing_keys.emplace_back("model.path: the checkpoint to start from");
  if (config.data.train.empty()) missing_keys.emplace_back("data.train: the file of conversations to train on");
  if (config.output.dir.empty()) missing_keys.emplace_back("output.dir: the folder for the run's results");
  if (!missing_keys.empty()) throw usage_error("the configuration lacks\n  {}", fmt::join(missing_keys, "\n  "));
}

void check_loss_scale(const engine::TrainingOptions& training) {
  if (!training.loss_scale || training.precision == engine::Precision::kFp16) return;
  throw usage_error(
      "training.loss_scale: has no effect with training.precision={}, which uses no loss scale; set it to auto, or set "
      "training.precision to fp16",
      engine::to_string(training.precision));
}

void check_learning_rates(const Config& config) {
  const auto check_part_learning_rate = [](const char* part_name, bool frozen, const AutoOr<double>& rate) {
    if (!frozen || !rate) return;
    throw usage_error(
        "training.{0}_learning_rate: is {1}, but model.freeze_{2}=true freezes that part of the model; leave "
        "training.{0}_learning_rate auto, or set model.freeze_{2} to false",
        part_name, *rate, std::string_view(part_name) == "vision" ? "vision_tower" : part_name);
  };
  check_part_learning_rate("vision", config.model.freeze_vision_tower, config.training.vision_learning_rate);
  check_part_learning_rate("projector", config.model.freeze_projector, config.training.projector_learning_rate);
}

namespace {

void check_mask_loss_weights(const Config& config) {
  const auto& [text, bce, dice] = config.training.mask_loss_weights;
  if (text > 0 || bce > 0 || dice > 0 || !models::predicts_masks(config.model.path)) return;
  throw usage_error(
      "training.text_loss_weight: is 0, and so are training.mask_bce_weight and training.mask_dice_weight, so nothing "
      "would be learned; set one of them above 0");
}

}  // namespace

void check_evaluation_options(const Config& config) {
  const EvaluationOptions& evaluation = config.evaluation;
  if (evaluation.is_enabled() && config.data.eval.empty()) {
    throw usage_error(
        "training.eval_steps: is {}, but data.eval is empty; name the file to evaluate on, such as "
        "data.eval=held_out.json, or set training.eval_steps=0",
        evaluation.steps ? std::to_string(*evaluation.steps) : "auto");
  }
  if (evaluation.early_stopping_patience > 0 && !evaluation.is_enabled()) {
    throw usage_error(
        "training.early_stopping_patience: is {}, but training.eval_steps is 0, so no evaluation can stop the run; set "
        "training.eval_steps, such as training.eval_steps=100, or set the patience to 0",
        evaluation.early_stopping_patience);
  }
  if (evaluation.best_metric.needs_answers() && !evaluation.generate_answers) {
    throw usage_error(
        "training.best_metric: is {}, which needs answers, but training.eval_answers is false; use "
        "training.best_metric=loss, or set training.eval_answers to true",
        to_string(evaluation.best_metric));
  }
  if (evaluation.best_metric.kind() == BestMetric::kAnswerMetric &&
      std::ranges::count(evaluation.metrics.metrics, evaluation.best_metric.answer_metric()) == 0) {
    throw usage_error("training.best_metric: is {0}, which eval.metrics does not list; add {0} to eval.metrics",
                      to_string(evaluation.best_metric));
  }
  if (evaluation.best_metric == BestMetric::kDice && !models::predicts_masks(config.model.path)) {
    throw usage_error(
        "training.best_metric: is dice, which needs masks, but the model of model.path={} predicts none; use "
        "training.best_metric=loss or exact_match",
        config.model.path);
  }
}

void check_config(const Config& config) {
  check_required_keys(config);
  check_batch_scaling(config.training);
  check_loss_scale(config.training);
  check_learning_rates(config);
  check_evaluation_options(config);
  check_mask_loss_weights(config);
  check_micro_batch_size(config);
}

namespace {

namespace fs = std::filesystem;

/// The files that a run writes into output.dir.
constexpr std::array kRunFileNames{"config.yaml",       "epochs.jsonl", "data_check.jsonl", "environment.json",
                                   "events.jsonl",      "ledger.json",  "metrics.jsonl",    "plan.json",
                                   "predictions.jsonl", "report.html",  "run.lock",         "samples.jsonl"};
/// The folders that a run writes in output.dir, and from which it removes old files.
constexpr std::array kRunFolderNames{"checkpoints", "tensorboard"};

/// Paths that a run reads, with the key that names them.
using RunInputPaths = std::vector<std::pair<std::string, fs::path>>;

/// Returns the inputs that exist.
RunInputPaths collect_input_paths(const Config& config) {
  RunInputPaths inputs{{"model.path", config.model.path},
                       {"model.adapter", config.model.adapter},
                       {"data.eval", config.data.eval},
                       {"data.image_root", config.data.image_root}};
  for (const auto& source : config.data.train.sources()) {
    inputs.emplace_back("data.train", source.path);
    if (!source.image_root.empty()) inputs.emplace_back("data.train", source.image_root);
  }
  std::error_code ignored_error;
  std::erase_if(inputs,
                [&](const auto& input) { return input.second.empty() || !fs::exists(input.second, ignored_error); });
  return inputs;
}

bool is_same_path(const fs::path& a, const fs::path& b) {
  std::error_code ignored_error;
  return fs::equivalent(a, b, ignored_error);
}

bool is_inside_folder(const fs::path& path, const fs::path& folder) {
  std::error_code ignored_error;
  const fs::path canonical_path = fs::weakly_canonical(path, ignored_error),
                 canonical_folder = fs::weakly_canonical(folder, ignored_error);
  return std::ranges::mismatch(canonical_folder, canonical_path).in1 == canonical_folder.end();
}

/// Throws UserError (kUsage) if `folder` has a file that a run would overwrite and that no run
/// wrote. Every run leaves run.lock next to its files.
void check_no_unrelated_files(const fs::path& folder) {
  std::error_code ignored_error;
  if (fs::exists(fs::symlink_status(folder / "run.lock", ignored_error))) return;
  for (const char* const name : kRunFileNames) {
    if (!fs::is_regular_file(folder / name, ignored_error)) continue;
    throw usage_error(
        "output.dir: {} contains {}, which no run wrote (there is no run.lock next to it) and a run would overwrite; "
        "choose another folder, or move it away",
        folder.string(), name);
  }
}

/// Returns whether the file has exactly the text that a run writes as config.yaml.
bool is_resolved_config_file(const fs::path& config_file) {
  Config config;
  OptionTable options = declare_options(config);
  options.read(config_file.string(), {});
  return options.to_yaml() == io::read_file(config_file);
}

}  // namespace

void check_output_files(const Config& config, const fs::path& config_file) {
  if (config.output.dir.empty()) return;
  const fs::path folder = get_run_folder(config);
  RunInputPaths inputs = collect_input_paths(config);
  const bool is_saved_config =
      is_same_path(config_file, folder / "config.yaml") && is_resolved_config_file(config_file);
  if (!is_saved_config) inputs.emplace_back("--config", config_file);
  constexpr const char* kAdvice = "copy it elsewhere, or choose another output.dir";
  for (const auto& [option, path] : inputs) {
    for (const char* const name : kRunFileNames) {
      if (!is_same_path(path, folder / name)) continue;
      throw usage_error("{}: {} is {}, a file that the run writes; {}", option, path.string(), (folder / name).string(),
                        kAdvice);
    }
    for (const char* const name : kRunFolderNames) {
      if (!is_inside_folder(path, folder / name)) continue;
      throw usage_error("{}: {} is in {}, a folder that the run writes and clears; {}", option, path.string(),
                        (folder / name).string(), kAdvice);
    }
  }
  if (!is_saved_config) check_no_unrelated_files(folder);
  for (const char* const name : kRunFileNames) {
    if (const auto kind = describe_non_regular_file(folder / name); !kind.empty()) {
      throw run_error("{}: is {}, but the run writes a file of that name; remove it", (folder / name).string(), kind);
    }
  }
}

void run_preflight_checks(const Config& config, const io::Records& records) {
  check_config(config);
  make_task_settings(config.training.batch_and_tasks, data::TaskTable(records));
  const auto checkpoint = find_newest_checkpoint(get_run_folder(config));
  if (checkpoint) load_resume_point(*checkpoint, config, make_run_fingerprint(config, records.size()));
  load_model(config, make_training_job(config), at::kMeta, checkpoint, /*load_weights=*/false);
}

namespace {

/// Keys that have no effect under a common condition.
struct UnusedSettingsRule {
  bool applies = false;  // whether the condition holds
  std::vector<std::string_view> keys{};
  std::string_view reason{};
};

/// Returns all rules. Conditions on media hold only if samples were counted.
std::vector<UnusedSettingsRule> list_unused_settings_rules(const Config& config,
                                                           const data::SampleCountsByMediaKind& media_counts,
                                                           const ModelTraits& model) {
  const bool has_media_counts = media_counts.samples > 0;
  const auto& training = config.training;
  const auto& batch_and_tasks = training.batch_and_tasks;
  return {
      {has_media_counts && media_counts.num_samples_with_images == 0,
       {"data.augment"},
       "no sample has an image, and videos and volumes are not augmented"},
      {has_media_counts && media_counts.num_samples_with_videos == 0,
       {"data.video_fps", "data.video_max_frames", "data.video_layout"},
       "no sample has a video"},
      {has_media_counts && media_counts.num_samples_with_volumes == 0,
       {"data.volume.as", "data.volume.size", "data.volume.spacing", "data.volume.normalization", "data.volume.window",
        "data.volume.dtype", "data.volume.percentiles", "data.volume.plane", "data.volume.series", "data.volume.slices",
        "data.volume.max_frames"},
       "no sample has a volume"},
      {media_counts.is_text_only(),
       {"data.image_max_pixels", "data.max_images_per_sample"},
       "no sample has an image or video"},
      {!config.data.packing,
       {"data.pack_max_tokens", "data.pack_max_images", "data.pack_max_tiles"},
       "data.packing is false"},
      {!model.takes_media,
       {"model.freeze_vision_tower", "model.freeze_projector", "training.vision_learning_rate",
        "training.projector_learning_rate"},
       "the model has no vision tower"},
      {!model.predicts_masks,
       {"data.mask_image_size", "model.freeze_mask_encoder", "training.mask_learning_rate", "training.text_loss_weight",
        "training.mask_bce_weight", "training.mask_dice_weight"},
       "the model predicts no masks"},
      {training.precision != engine::Precision::kFp16 || training.loss_scale.has_value(),
       {"training.loss_scale_growth_steps"},
       "it applies only to training.precision=fp16 with training.loss_scale=auto"},
      {training.max_steps.has_value(), {"training.epochs"}, "training.max_steps is a number"},
      {!config.evaluation.is_enabled(),
       {"training.eval_samples", "training.eval_answers", "training.eval_max_new_tokens", "training.eval_batch_size",
        "training.best_metric"},
       "training.eval_steps is 0, so there are no evaluations"},
      {!config.evaluation.is_enabled(),
       {"eval.metrics", "eval.numeric_tolerance"},
       "training.eval_steps is 0, so there are no evaluations"},
      {config.evaluation.is_enabled() && !config.evaluation.generate_answers,
       {"eval.metrics", "eval.numeric_tolerance"},
       "training.eval_answers is false, so there are no answers"},
      {!config.evaluation.is_enabled() && config.output.num_sample_predictions == 0,
       {"data.eval"},
       "training.eval_steps and output.sample_predictions are 0, so nothing reads it"},
      {batch_and_tasks.task_weighting != engine::TaskWeighting::kGradNorm,
       {"training.gradnorm_alpha", "training.gradnorm_learning_rate"},
       "training.task_weighting is not gradnorm"},
      {config.output.num_sample_predictions == 0,
       {"output.sample_predictions_share"},
       "output.sample_predictions is 0"},
  };
}

}  // namespace

ModelTraits ModelTraits::read(const std::filesystem::path& folder) {
  return {.predicts_masks = models::predicts_masks(folder), .takes_media = models::takes_media(folder)};
}

std::vector<std::string> find_unused_settings(const Config& config, const data::SampleCountsByMediaKind& media_counts,
                                              const ModelTraits& model) {
  Config current = config, defaults;
  const OptionTable current_table = declare_options(current), default_table = declare_options(defaults);
  std::vector<std::string> remarks;
  for (const UnusedSettingsRule& rule : list_unused_settings_rules(config, media_counts, model)) {
    if (!rule.applies) continue;
    for (const std::string_view key : rule.keys) {
      if (current_table.format_value(key) == default_table.format_value(key)) continue;
      remarks.push_back(fmt::format("{}={} has no effect: {}", key, current_table.format_value(key), rule.reason));
    }
  }
  return remarks;
}

}  // namespace vlmtrain::train
