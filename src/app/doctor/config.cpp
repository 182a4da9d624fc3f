#include "vlmtrain/train/config.h"

#include <fmt/format.h>

#include "app/doctor/examinations.h"
#include "vlmtrain/base/number_words.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/train/check_start.h"
#include "vlmtrain/train/run_files.h"
#include "vlmtrain/train/setup.h"

namespace vlmtrain::app {

namespace {

/// What is wrong with all samples of a data set shows in so many.
constexpr int64_t kMostSamples = 512;

/// As far as a run would get before it plans and loads.
void check(const train::Config& config, const Question& question, Section& section) {
  train::check_run_files(config, question.config);
  train::check_required(config);
  const auto records = train::training_records(config);
  section.facts["samples"] = records->size();
  if (!config.data.eval.empty()) section.facts["eval_samples"] = train::evaluation_records(config)->size();
  const auto processor =
      models::load_processor(config.model.path, train::processor_settings(config.data, config.model.adapter));
  train::check_start(config, *records);
  train::refuse_bad_samples(*records, *processor, config, config.data.train.name(), kMostSamples);
  const io::CheckpointTensors weights(config.model.path);
  section.facts["tensors"] = weights.names().size();
  section.ok(fmt::format("{}: its keys, the {} of {} and the checkpoint {} are as a run needs them", question.config,
                         counted(records->size(), "sample"), config.data.train.name(), config.model.path));
}

}  // namespace

Section examine_config(const Question& question) {
  constexpr double kMostConfigSeconds = 60;
  return examine_apart(
      {.name = "config", .doing = "reading the configuration's files", .most_seconds = kMostConfigSeconds},
      [&](Section& section) {
        train::Config config;
        train::declare(config).read(question.config, question.overrides);
        section.facts = {{"file", question.config},
                         {"output_dir", config.output.dir},
                         {"precision", engine::name_of(config.training.precision)},
                         {"model", config.model.path},
                         {"data", config.data.train.name()}};
        check(config, question, section);
      });
}

}  // namespace vlmtrain::app
