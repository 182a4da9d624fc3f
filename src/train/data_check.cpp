#include "train/data_check.h"

#include <algorithm>
#include <chrono>
#include <system_error>

#include "train/shared_outlines.h"
#include "vlmtrain/base/content_hash.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/number_words.h"
#include "vlmtrain/data/other_reading.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/memory/processor.h"
#include "vlmtrain/models/sample_key.h"
#include "vlmtrain/report/progress.h"
#include "vlmtrain/train/check_start.h"
#include "vlmtrain/train/setup.h"

namespace vlmtrain::train {

namespace {

/// Of a data set that is not to be looked at whole: what a plan is made for then.
constexpr int64_t kSamplesForPlan = 512;

/// Another program may make other samples of the same files.
std::string key_of(const std::filesystem::path& model, const models::ProcessorSettings& settings) {
  ContentHash program;
  std::error_code error;
  const std::filesystem::path file = "/proc/self/exe";
  program.add(static_cast<uint64_t>(std::filesystem::file_size(file, error)));
  program.add(static_cast<uint64_t>(std::filesystem::last_write_time(file, error).time_since_epoch().count()));
  return models::sample_key(model, settings) + program.text();
}

data::Outlines outlines_of(const io::Records& records, const models::Processor& processor, const Config& config,
                           data::OutlineSettings settings) {
  report::CountProgress progress("checking the data", records.size(), !spdlog::should_log(spdlog::level::info));
  settings.workers = std::max<int64_t>(config.data.num_workers, memory::default_threads());
  settings.on_progress = [&progress](int64_t done) { progress.show(done); };
  return data::outline_samples(records, processor, settings);
}

/// At all samples.
data::Outlines look_at_all(const io::Records& records, const models::Processor& processor, const Config& config,
                           const std::filesystem::path& file, data::OutlineSettings outline_settings) {
  const auto start = std::chrono::steady_clock::now();
  if (!outline_settings.cache.empty()) {
    const auto settings = processor_settings(config.data, config.model.adapter);
    outline_settings.processor = key_of(config.model.path, settings);
    outline_settings.keeps_prints = config.evaluation.are_wanted();
  }
  data::Outlines outlines = outlines_of(records, processor, config, std::move(outline_settings));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  spdlog::info("data {}: {} samples checked in {:.1f} s, {} of them as they were; {} cannot be used", file.string(),
               records.size(), seconds, outlines.from_cache, outlines.problems.size());
  return outlines;
}

}  // namespace

data::Outlines look_at_data(const io::Records& records, const models::Processor& processor, const Config& config,
                            const std::filesystem::path& file, const std::filesystem::path& cache) {
  if (!config.data.check_at_start) {
    spdlog::info("data {}: not checked (data.check_at_start=false)", file.string());
    return outlines_of(records, processor, config, {.most_samples = kSamplesForPlan});
  }
  const auto shared = shared_outlines(file.string(), records.size());
  if (cache.empty() || shared.empty()) {
    return look_at_all(records, processor, config, file, {.cache = cache.empty() ? shared : cache});
  }
  std::error_code error;
  // Nothing but a file: a pipe in its place would be waited for.
  const bool is_shared = std::filesystem::is_regular_file(shared, error);
  if (is_shared && !std::filesystem::exists(cache, error)) copy_outlines(shared, cache);
  auto outlines = look_at_all(records, processor, config, file, {.cache = cache});
  const bool has_news = outlines.from_cache < outlines.usable() || !is_shared;
  if (has_news && std::filesystem::is_regular_file(cache, error)) copy_outlines(cache, shared);
  return outlines;
}

data::Outlines look_to_inspect(const io::Records& records, const models::Processor& processor, const Config& config,
                               const std::filesystem::path& file, const std::filesystem::path& cache) {
  const auto shared = shared_outlines(file.string(), records.size());
  std::error_code error;
  const bool is_first = !shared.empty() && !std::filesystem::exists(cache, error);
  return look_at_all(records, processor, config, file, {.cache = is_first ? shared : cache, .writes_cache = false});
}

void refuse_bad_samples(const io::Records& records, const models::Processor& processor, const Config& config,
                        const std::filesystem::path& file, int64_t most_samples) {
  if (!config.data.check_at_start || config.data.on_bad_sample == data::BadSamplePolicy::kSkip) return;
  const auto outlines = outlines_of(records, processor, config, {.most_samples = most_samples});
  data::Ledger ledger(file.string(), records.size());
  data::settle_problems(outlines.problems, outlines.ids, ledger, config.data.on_bad_sample, records);
}

namespace {

/// Samples that the run trained on so far, for all that is known: their keys were passed over.
void warn_of_other_reading(const data::Outlines& outlines, const Config& config, const data::Ledger& ledger) {
  int64_t samples = 0;
  for (const auto& [index, problem] : outlines.problems) {
    const bool is_new = ledger.status(index) != data::SampleStatus::kDropped;
    if (is_new && data::is_of_passed_over_key(problem.message)) ++samples;
  }
  if (samples == 0) return;
  const bool stops = config.data.on_bad_sample == data::BadSamplePolicy::kFail;
  spdlog::warn(
      "data {}: the run was begun by a version that passed over keys which are refused now, in {}; the keys' names in "
      "data.ignore_keys read them as the run did until now, {}",
      config.data.train.name(), counted(samples, "sample"),
      stops ? "and data.on_bad_sample=skip drops them" : "else they are dropped from here on");
}

}  // namespace

void settle_bad_samples(const data::Outlines& outlines, const Config& config, const io::Records& records,
                        data::Ledger& ledger, const std::filesystem::path& ledger_file, bool read_otherwise) {
  try {
    if (read_otherwise) warn_of_other_reading(outlines, config, ledger);
    data::settle_problems(outlines.problems, outlines.ids, ledger, config.data.on_bad_sample, records);
    if (ledger.count(data::SampleStatus::kDropped) == ledger.samples()) {
      throw data_error("{}: none of the {} samples can be used; the first: {}", config.data.train.name(),
                       records.size(),
                       outlines.problems.empty() ? "it was dropped before" : outlines.problems.begin()->second.message);
    }
  } catch (const UserError&) {
    io::write_file(ledger_file, io::json_text(ledger.to_json(), 2) + "\n");
    throw;
  }
}

}  // namespace vlmtrain::train
