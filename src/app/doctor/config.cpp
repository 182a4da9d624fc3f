#include "vlmtrain/train/config.h"

#include <fmt/format.h>

#include "app/doctor/examinations.h"
#include "vlmtrain/base/number_words.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/train/checks.h"
#include "vlmtrain/train/components.h"

namespace vlmtrain::app {

namespace {

/// What is wrong with all samples of a data set shows in so many.
constexpr int64_t kMaxSamples = 512;

/// As far as a run would get before it plans and loads.
void check_like_run(const train::Config& config, const DoctorContext& context, Section& section) {
  train::check_run_files(config, context.config);
  train::check_required_keys(config);
  const auto records = train::open_training_records(config);
  section.facts["samples"] = records->size();
  if (!config.data.eval.empty()) section.facts["eval_samples"] = train::open_evaluation_records(config)->size();
  const auto processor =
      models::load_processor(config.model.path, train::make_processor_settings(config.data, config.model.adapter));
  train::preflight_check(config, *records);
  train::check_no_bad_samples(*records, *processor, config, config.data.train.name(), kMaxSamples);
  const io::CheckpointTensors weights(config.model.path);
  section.facts["tensors"] = weights.names().size();
  section.ok(fmt::format("{}: its keys, the {} of {} and the checkpoint {} are as a run needs them", context.config,
                         pluralize(records->size(), "sample"), config.data.train.name(), config.model.path));
}

}  // namespace

Section examine_config(const DoctorContext& context) {
  constexpr double kTimeoutSeconds = 60;
  return examine_in_subprocess(
      {.name = "config", .activity = "reading the configuration's files", .timeout_seconds = kTimeoutSeconds},
      [&](Section& section) {
        train::Config config;
        train::declare(config).read(context.config, context.overrides);
        section.facts = {{"file", context.config},
                         {"output_dir", config.output.dir},
                         {"precision", engine::to_string(config.training.precision)},
                         {"model", config.model.path},
                         {"data", config.data.train.name()}};
        check_like_run(config, context, section);
      });
}

}  // namespace vlmtrain::app
