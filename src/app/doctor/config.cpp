#include "vlmtrain/train/config.h"

#include <fmt/format.h>

#include "app/doctor/examinations.h"
#include "vlmtrain/base/number_words.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/train/check_start.h"
#include "vlmtrain/train/evaluate.h"
#include "vlmtrain/train/run_files.h"
#include "vlmtrain/train/setup.h"

namespace vlmtrain::app {

namespace {

/// So many, spread over the data set: what is wrong with all of them shows.
std::vector<io::Record> some_of(const std::vector<io::Record>& records) {
  constexpr size_t kMostSamples = 512;
  const size_t step = (records.size() + kMostSamples - 1) / kMostSamples;
  std::vector<io::Record> some;
  for (size_t i = 0; i < records.size(); i += step) some.push_back(records[i]);
  return some;
}

/// As far as a run would get before it plans and loads.
void check(const train::Config& config, const Question& question, Section& section) {
  train::check_run_files(config, question.config);
  train::check_required(config);
  const auto records = train::read_records(config.data.train);
  section.facts["samples"] = records.size();
  if (!config.data.eval.empty()) section.facts["eval_samples"] = train::read_records(config.data.eval).size();
  const auto processor =
      models::load_processor(config.model.path, train::processor_settings(config.data, config.data.train));
  train::check_start(config, records);
  train::refuse_bad_samples(some_of(records), *processor, config, config.data.train);
  const io::CheckpointTensors weights(config.model.path);
  section.facts["tensors"] = weights.names().size();
  section.ok(fmt::format("{}: its keys, the {} of {} and the checkpoint {} are as a run needs them", question.config,
                         counted(std::ssize(records), "sample"), config.data.train, config.model.path));
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
                         {"data", config.data.train}};
        check(config, question, section);
      });
}

}  // namespace vlmtrain::app
