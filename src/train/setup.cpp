#include "vlmtrain/train/setup.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "vlmtrain/base/error.h"

namespace vlmtrain::train {

void check_required(const Config& config) {
  std::vector<std::string> missing;
  if (config.model.path.empty()) missing.emplace_back("model.path: the checkpoint to start from");
  if (config.data.train.empty()) missing.emplace_back("data.train: the file of conversations to train on");
  if (config.output.dir.empty()) missing.emplace_back("output.dir: the folder for the run's results");
  if (!missing.empty()) throw usage_error("the configuration lacks\n  {}", fmt::join(missing, "\n  "));
}

std::vector<io::Record> read_records(const std::filesystem::path& file) {
  auto records = io::read_dataset(file);
  if (records.empty()) throw data_error("{}: holds no samples", file.string());
  return records;
}

models::ProcessorSettings processor_settings(const data::DataOptions& data, const std::filesystem::path& data_file) {
  return {.image_root = data.image_root.empty() ? data_file.parent_path() : std::filesystem::path(data.image_root),
          .max_length = data.max_length,
          .max_images_per_sample = data.max_images_per_sample,
          .image_max_pixels = data.image_max_pixels,
          .chat_template = data.chat_template};
}

data::LoaderSettings loader_settings(const Config& config) {
  return {.global_batch_size = config.training.global_batch_size,
          .num_workers = config.data.num_workers,
          .seed = static_cast<uint64_t>(config.training.seed),
          .on_bad_sample = config.data.on_bad_sample};
}

models::FrozenParts frozen_parts(const ModelOptions& options) {
  return {options.freeze_vision_tower, options.freeze_projector, options.freeze_language_model};
}

void freeze(models::VisionLanguageModel& model, const ModelOptions& options) {
  if (!models::freeze(model, frozen_parts(options))) {
    throw usage_error(
        "model.freeze_vision_tower, model.freeze_projector and model.freeze_language_model leave nothing to train; set "
        "one of them to false");
  }
}

engine::AdamWSettings adamw_settings(const engine::TrainingOptions& options) {
  return {.beta1 = options.adam_beta1,
          .beta2 = options.adam_beta2,
          .epsilon = options.adam_epsilon,
          .weight_decay = options.weight_decay,
          .max_grad_norm = options.max_grad_norm};
}

engine::LearningRates learning_rates(const engine::TrainingOptions& options, double schedule_factor) {
  return {.vision_tower = schedule_factor * options.vision_learning_rate.value_or(options.learning_rate),
          .projector = schedule_factor * options.projector_learning_rate.value_or(options.learning_rate),
          .language_model = schedule_factor * options.learning_rate};
}

nlohmann::ordered_json run_fingerprint(const Config& config, int64_t samples) {
  // Not the keys that an error message tells to change before going on, such as data.max_length.
  constexpr const char* kKeys[] = {"model.path",
                                   "model.freeze_vision_tower",
                                   "model.freeze_projector",
                                   "model.freeze_language_model",
                                   "data.train",
                                   "data.chat_template",
                                   "training.global_batch_size",
                                   "training.learning_rate",
                                   "training.vision_learning_rate",
                                   "training.projector_learning_rate",
                                   "training.adam_beta1",
                                   "training.adam_beta2",
                                   "training.adam_epsilon",
                                   "training.weight_decay",
                                   "training.warmup_ratio",
                                   "training.lr_scheduler",
                                   "training.max_grad_norm",
                                   "training.precision",
                                   "training.seed"};
  Config copy = config;
  const OptionTable options = declare(copy);
  nlohmann::ordered_json fingerprint;
  for (const char* key : kKeys) fingerprint[key] = options.value_of(key);
  fingerprint["samples in data.train"] = std::to_string(samples);
  fingerprint["steps (training.max_steps or training.epochs)"] = std::to_string(total_steps(config.training, samples));
  return fingerprint;
}

}  // namespace vlmtrain::train
