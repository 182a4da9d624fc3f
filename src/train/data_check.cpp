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
constexpr int64_t kPlanSamples = 512;

/// Another program may make other samples of the same files.
std::string make_cache_key(const std::filesystem::path& model, const models::ProcessorSettings& settings) {
  ContentHash program;
  std::error_code error;
  const std::filesystem::path file = "/proc/self/exe";
  program.add(static_cast<uint64_t>(std::filesystem::file_size(file, error)));
  program.add(static_cast<uint64_t>(std::filesystem::last_write_time(file, error).time_since_epoch().count()));
  return models::compute_sample_key(model, settings) + program.hex();
}

data::SampleIndex index_with_progress(const io::Records& records, const models::Processor& processor,
                                      const Config& config, data::SampleIndexSettings settings) {
  report::CountProgress progress("checking the data", records.size(), !spdlog::should_log(spdlog::level::info));
  settings.workers = std::max<int64_t>(config.data.num_workers, memory::default_threads());
  settings.on_progress = [&progress](int64_t completed) { progress.show(completed); };
  return data::index_samples(records, processor, settings);
}

/// At all samples.
data::SampleIndex check_all_samples(const io::Records& records, const models::Processor& processor,
                                    const Config& config, const std::filesystem::path& file,
                                    data::SampleIndexSettings index_settings) {
  const auto start = std::chrono::steady_clock::now();
  if (!index_settings.cache.empty()) {
    const auto settings = make_processor_settings(config.data, config.model.adapter);
    index_settings.processor = make_cache_key(config.model.path, settings);
    index_settings.keep_fingerprints = config.evaluation.is_enabled();
  }
  data::SampleIndex sample_index = index_with_progress(records, processor, config, std::move(index_settings));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  spdlog::info("data {}: {} samples checked in {:.1f} s, {} of them as they were; {} cannot be used", file.string(),
               records.size(), seconds, sample_index.num_from_cache, sample_index.problems.size());
  return sample_index;
}

}  // namespace

data::SampleIndex check_data(const io::Records& records, const models::Processor& processor, const Config& config,
                             const std::filesystem::path& file, const std::filesystem::path& cache) {
  if (!config.data.check_at_start) {
    spdlog::info("data {}: not checked (data.check_at_start=false)", file.string());
    return index_with_progress(records, processor, config, {.max_samples = kPlanSamples});
  }
  const auto shared_cache = get_shared_index_file(file.string(), records.size());
  if (cache.empty() || shared_cache.empty()) {
    return check_all_samples(records, processor, config, file, {.cache = cache.empty() ? shared_cache : cache});
  }
  std::error_code error;
  // Nothing but a file: a pipe in its place would be waited for.
  const bool shared_exists = std::filesystem::is_regular_file(shared_cache, error);
  if (shared_exists && !std::filesystem::exists(cache, error)) copy_index_file(shared_cache, cache);
  auto sample_index = check_all_samples(records, processor, config, file, {.cache = cache});
  const bool has_new_results = sample_index.num_from_cache < sample_index.num_usable() || !shared_exists;
  if (has_new_results && std::filesystem::is_regular_file(cache, error)) copy_index_file(cache, shared_cache);
  return sample_index;
}

data::SampleIndex check_data_for_inspection(const io::Records& records, const models::Processor& processor,
                                            const Config& config, const std::filesystem::path& file,
                                            const std::filesystem::path& cache) {
  const auto shared_cache = get_shared_index_file(file.string(), records.size());
  std::error_code error;
  const bool use_shared = !shared_cache.empty() && !std::filesystem::exists(cache, error);
  return check_all_samples(records, processor, config, file,
                           {.cache = use_shared ? shared_cache : cache, .write_cache = false});
}

void check_no_bad_samples(const io::Records& records, const models::Processor& processor, const Config& config,
                          const std::filesystem::path& file, int64_t max_samples) {
  if (!config.data.check_at_start || config.data.on_bad_sample == data::BadSamplePolicy::kSkip) return;
  const auto sample_index = index_with_progress(records, processor, config, {.max_samples = max_samples});
  data::Ledger ledger(file.string(), records.size());
  data::report_problems(sample_index.problems, sample_index.ids, ledger, config.data.on_bad_sample, records);
}

namespace {

/// Samples that the run trained on so far, for all that is known: their keys were passed over.
void warn_about_ignored_keys(const data::SampleIndex& sample_index, const Config& config, const data::Ledger& ledger) {
  int64_t samples = 0;
  for (const auto& [index, problem] : sample_index.problems) {
    const bool is_new = ledger.status(index) != data::SampleStatus::kDropped;
    if (is_new && data::mentions_ignored_keys(problem.message)) ++samples;
  }
  if (samples == 0) return;
  const bool stops = config.data.on_bad_sample == data::BadSamplePolicy::kFail;
  spdlog::warn(
      "data {}: the run was begun by a version that passed over keys which are refused now, in {}; the keys' names in "
      "data.ignore_keys read them as the run did until now, {}",
      config.data.train.name(), pluralize(samples, "sample"),
      stops ? "and data.on_bad_sample=skip drops them" : "else they are dropped from here on");
}

}  // namespace

void handle_bad_samples(const data::SampleIndex& sample_index, const Config& config, const io::Records& records,
                        data::Ledger& ledger, const std::filesystem::path& ledger_file, bool began_ignoring_keys) {
  try {
    if (began_ignoring_keys) warn_about_ignored_keys(sample_index, config, ledger);
    data::report_problems(sample_index.problems, sample_index.ids, ledger, config.data.on_bad_sample, records);
    if (ledger.count(data::SampleStatus::kDropped) == ledger.samples()) {
      throw data_error(
          "{}: none of the {} samples can be used; the first: {}", config.data.train.name(), records.size(),
          sample_index.problems.empty() ? "it was dropped before" : sample_index.problems.begin()->second.message);
    }
  } catch (const UserError&) {
    io::write_file(ledger_file, io::to_json_string(ledger.to_json(), 2) + "\n");
    throw;
  }
}

}  // namespace vlmtrain::train
