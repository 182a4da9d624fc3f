#include "train/data_check/data_check.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/process.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/data/index/ledger.h"
#include "vlmtrain/data/order/sample_order.h"
#include "vlmtrain/data/sample/statistics.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/memory/cpu_info.h"
#include "vlmtrain/memory/host_memory.h"
#include "vlmtrain/models/checkpoint_info.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/report/progress.h"
#include "vlmtrain/train/checks.h"
#include "vlmtrain/train/components.h"

namespace vlmtrain::train {

namespace fs = std::filesystem;

fs::path get_shared_index_file(const std::string& dataset, int64_t samples) {
  // Checking fewer samples takes about a second.
  constexpr int64_t kMinSamplesToCache = 10'000;
  const fs::path cache = io::get_user_cache_folder();
  std::error_code error;
  const fs::path current_folder = fs::current_path(error);
  if (samples < kMinSamplesToCache || cache.empty() || error) return {};
  const fs::path folder = cache / "outlines";  // this name keeps existing caches valid
  fs::create_directories(folder, error);
  if (error) return {};
  io::clean_up_abandoned_temp_files(folder);
  return folder / (ContentHash().add((current_folder / dataset).native()).to_hex() + ".jsonl");
}

void copy_index_file(const fs::path& source_file, const fs::path& target_file) {
  try {
    std::ifstream source(source_file, std::ios::binary);
    if (!source) throw run_error("{} cannot be read", source_file.string());
    io::AtomicFile copied_file(target_file);
    std::string block(size_t{1} << 20U, '\0');  // 1 MiB at a time; not tuned
    do {
      source.read(block.data(), std::ssize(block));
      copied_file.write(std::string_view(block).substr(0, static_cast<size_t>(source.gcount())));
    } while (source);
    copied_file.commit();
  } catch (const std::exception& problem) {
    spdlog::info("results of the data check cannot be saved in {}: {}", target_file.string(), problem.what());
  }
}

namespace {

/// Number of samples that are checked for a plan with data.check_at_start=false. More would delay
/// the start of a run; fewer would miss more of the large samples. Not tuned.
constexpr int64_t kNumPlanningSamples = 512;

/// Returns the key of cached checks: a hash of the model's files, the settings, and size and
/// modification time of this program, since another version may make other samples from the same
/// files.
std::string make_data_check_cache_key(const std::filesystem::path& model, const models::ProcessorSettings& settings) {
  ContentHash program_hash;
  std::error_code error;
  const auto file = get_program_path();
  program_hash.add(static_cast<uint64_t>(std::filesystem::file_size(file, error)));
  program_hash.add(static_cast<uint64_t>(std::filesystem::last_write_time(file, error).time_since_epoch().count()));
  return models::compute_sample_shape_key(model, settings) + program_hash.to_hex();
}

/// Checks samples with a progress bar, on all cores.
data::SampleIndex index_samples_with_progress(const io::Records& records, const models::Processor& processor,
                                              const Config& config, data::SampleIndexSettings settings) {
  report::CountProgressBar progress("checking the data", records.size(), !spdlog::should_log(spdlog::level::info));
  settings.num_workers = std::max<int64_t>(config.data.num_workers, memory::compute_default_num_threads());
  settings.on_progress = [&progress](int64_t completed) { progress.show(completed); };
  return data::index_samples(records, processor, settings);
}

/// Checks every sample and logs the duration. `index_settings`: has the cache file, if there is
/// one.
data::SampleIndex check_all_samples(const io::Records& records, const models::Processor& processor,
                                    const Config& config, const std::filesystem::path& file,
                                    data::SampleIndexSettings index_settings) {
  const auto start = std::chrono::steady_clock::now();
  if (!index_settings.cache.empty()) {
    const auto settings = make_processor_settings(config.data, config.model.adapter_folder());
    index_settings.processor_key = make_data_check_cache_key(config.model.folder(), settings);
    index_settings.keep_fingerprints = config.evaluation.is_enabled();
  }
  data::SampleIndex sample_index = index_samples_with_progress(records, processor, config, std::move(index_settings));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  spdlog::info(
      "data {}: {} checked in {:.1f} s{}; {} cannot be used", file.string(), pluralize(records.size(), "sample"),
      seconds,
      sample_index.num_cached_shapes > 0 ? fmt::format(", {} of them unchanged", sample_index.num_cached_shapes) : "",
      sample_index.problems.size());
  return sample_index;
}

}  // namespace

data::SampleIndex check_data(const io::Records& records, const models::Processor& processor, const Config& config,
                             const std::filesystem::path& file, const std::filesystem::path& cache) {
  if (!config.data.check_at_start) {
    spdlog::info("data {}: not checked ({}=false)", file.string(), keys::data::kCheckAtStart);
    return index_samples_with_progress(records, processor, config, {.max_samples = kNumPlanningSamples});
  }
  const auto shared_index_file = get_shared_index_file(file.string(), records.size());
  if (cache.empty() || shared_index_file.empty()) {
    return check_all_samples(records, processor, config, file, {.cache = cache.empty() ? shared_index_file : cache});
  }
  std::error_code error;
  // Copying anything but a regular file, such as a pipe, would block.
  const bool has_shared_cache = std::filesystem::is_regular_file(shared_index_file, error);
  if (has_shared_cache && !std::filesystem::exists(cache, error)) copy_index_file(shared_index_file, cache);
  auto sample_index = check_all_samples(records, processor, config, file, {.cache = cache});
  const bool has_new_results = sample_index.num_cached_shapes < sample_index.num_usable_samples() || !has_shared_cache;
  if (has_new_results && std::filesystem::is_regular_file(cache, error)) copy_index_file(cache, shared_index_file);
  return sample_index;
}

data::SampleIndex check_data_for_inspection(const io::Records& records, const models::Processor& processor,
                                            const Config& config, const std::filesystem::path& file,
                                            const std::filesystem::path& cache) {
  const auto shared_index_file = get_shared_index_file(file.string(), records.size());
  std::error_code error;
  const bool uses_shared_cache = !shared_index_file.empty() && !std::filesystem::exists(cache, error);
  return check_all_samples(records, processor, config, file,
                           {.cache = uses_shared_cache ? shared_index_file : cache, .write_cache = false});
}

void check_no_bad_samples(const io::Records& records, const models::Processor& processor, const Config& config,
                          const std::filesystem::path& file, int64_t max_samples) {
  if (!config.data.check_at_start || config.data.on_bad_sample == data::BadSamplePolicy::kSkip) return;
  const auto sample_index = index_samples_with_progress(records, processor, config, {.max_samples = max_samples});
  data::Ledger ledger(file.string(), records.size());
  data::report_problems(sample_index.problems, sample_index.ids, ledger, config.data.on_bad_sample, records);
}

namespace {

/// Warns of samples with keys that an older version ignored. The run may have trained on them.
void warn_about_ignored_keys(const data::SampleIndex& sample_index, const Config& config, const data::Ledger& ledger) {
  int64_t samples = 0;
  for (const auto& [index, problem] : sample_index.problems) {
    const bool is_new = ledger.status(index) != data::SampleStatus::kDropped;
    if (is_new && data::mentions_ignored_keys(problem.message)) ++samples;
  }
  if (samples == 0) return;
  const bool stops_run = config.data.on_bad_sample == data::BadSamplePolicy::kFail;
  spdlog::warn(
      "data {}: the run was started by a version that ignored keys which are errors now, in {}; list the keys in {} to "
      "ignore them again, {}",
      config.data.train.name(), pluralize(samples, "sample"), keys::data::kIgnoreKeys,
      stops_run ? fmt::format("or set {}=skip to drop the samples", keys::data::kOnBadSample)
                : "otherwise the samples are dropped from now on");
}

}  // namespace

void handle_bad_samples(const data::SampleIndex& sample_index, const Config& config, const io::Records& records,
                        data::Ledger& ledger, const std::filesystem::path& ledger_file,
                        bool earlier_version_ignored_keys) {
  try {
    if (earlier_version_ignored_keys) warn_about_ignored_keys(sample_index, config, ledger);
    data::report_problems(sample_index.problems, sample_index.ids, ledger, config.data.on_bad_sample, records);
    if (ledger.count(data::SampleStatus::kDropped) == ledger.num_samples()) {
      throw data_error(
          "{}: none of the {} samples can be used; the first: {}", config.data.train.name(), records.size(),
          sample_index.problems.empty() ? "it was dropped before" : sample_index.problems.begin()->second.message);
    }
  } catch (const UserError&) {
    io::write_file(ledger_file, io::to_json_string(ledger.to_json(), 2) + "\n");
    throw;
  }
}

namespace {

constexpr const char* kMedia = "an image, video or volume";

/// Warns if no usable sample has media. `key` and `dataset`: key and name of the data set.
void warn_if_no_media(std::string_view key, const std::string& dataset,
                      const data::SampleCountsByMediaKind& media_counts, const data::SampleIndex& sample_index) {
  if (!media_counts.is_text_only()) return;
  spdlog::warn(
      "{} {}: none of the {}{} has {}, so the model gets text only; if the records have media, set their keys in {} "
      "(docs/reference/data-formats.md), and check a sample with vlmtrain inspect",
      key, to_printable(dataset), pluralize(media_counts.samples, "usable sample"),
      sample_index.is_complete ? "" : " that were checked", kMedia, keys::data::kColumns);
}

/// Returns whether the paths are the same file or folder.
bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  return a == b || std::filesystem::equivalent(a, b, error);
}

}  // namespace

void log_training_data_remarks(const Config& config, const data::DataSet& records,
                               const data::SampleIndex& sample_index) {
  const std::string name = config.data.train.name();
  if (sample_index.is_complete) data::log_notices(sample_index.notices, name, records.size());
  const auto media_counts = data::count_samples_by_media_kind(sample_index.shapes);
  const ModelTraits model = ModelTraits::read(config.model.folder());
  if (model.takes_media) warn_if_no_media(keys::data::kTrain, name, media_counts, sample_index);
  const size_t num_sources =
      media_counts.is_text_only() || records.sources().size() == 1 ? 0 : records.sources().size();
  for (size_t source = 0; source < num_sources; ++source) {
    const auto [begin, end] = records.record_range(source);
    const auto source_media_counts = data::count_samples_by_media_kind(sample_index.shapes, begin, end);
    if (!source_media_counts.is_text_only()) continue;
    spdlog::info("data {}: none of the {} of this source has {}", to_printable(records.sources()[source].source.path),
                 pluralize(source_media_counts.samples, "sample"), kMedia);
  }
  for (const auto& remark : find_unused_settings(config, media_counts, model)) spdlog::warn("{}", remark);
}

void log_pack_utilization(const data::SampleOrder& order) {
  const auto& limits = order.settings().pack_limits;
  if (!limits) return;
  const data::PackedSamples packs = data::collect_first_epoch_packs(order);
  const data::PackFill fill = data::compute_pack_statistics(packs, order.sample_sizes(), *limits).fill;
  spdlog::info(
      "packs: {} of {} in the first epoch; {:.1f} % of {} tokens and {:.1f} % of {} images are used; {} are full "
      "because of their images{}",
      fill.num_packs, pluralize(std::ssize(packs.samples), "sample"), 100 * fill.token_fill, limits->max_tokens,
      100 * fill.media_fill, limits->max_media, fill.num_media_limited_packs, limits->max_tiles ? " or tiles" : "");
}

void log_evaluation_data_remarks(const Config& config, const data::SampleIndex& sample_index) {
  if (sample_index.is_complete) data::log_notices(sample_index.notices, config.data.eval, sample_index.shapes.size());
  // A few held-out samples may lack media by chance. The remarks on data.train cover them.
  if (config.evaluation.is_enabled() && data::parse_hold_out_share(config.data)) return;
  if (!models::takes_media(config.model.folder())) return;
  warn_if_no_media(keys::data::kEval, config.data.eval, data::count_samples_by_media_kind(sample_index.shapes),
                   sample_index);
}

void log_train_eval_overlap(const Config& config, const data::SampleIndex& eval_index, data::SampleIndex& train_index) {
  const std::string& name = config.data.eval;
  if (eval_index.fingerprints.content_hashes.empty() || train_index.fingerprints.content_hashes.empty()) {
    const auto is_eval_source = [&](const data::Source& source) { return is_same_file(source.path, name); };
    if (std::ranges::any_of(config.data.train.sources(), is_eval_source)) {
      spdlog::warn("{}: {} is also in {}, so evaluations measure memorization", keys::data::kEval, to_printable(name),
                   keys::data::kTrain);
    }
    return;
  }
  const auto overlap = data::find_shared_content(eval_index.fingerprints, train_index.fingerprints);
  const auto num_usable_samples = eval_index.num_usable_samples();
  const auto get_printable_id = [&](int64_t index) { return to_printable(eval_index.ids[index]); };
  if (!overlap.samples.empty()) {
    spdlog::warn(
        "{}: {} of {} {} also in {} with the same text and media, such as {}: evaluations measure memorization; "
        "vlmtrain inspect lists them",
        keys::data::kEval, format_with_commas(std::ssize(overlap.samples)), pluralize(num_usable_samples, "sample"),
        overlap.samples.size() == 1 ? "is" : "are", keys::data::kTrain, get_printable_id(overlap.samples.front()));
  }
  if (!overlap.samples_with_shared_files.empty()) {
    spdlog::info("{}: {} of {} {} an image, video or volume that is also in {} with other text, such as {}",
                 keys::data::kEval, format_with_commas(std::ssize(overlap.samples_with_shared_files)),
                 pluralize(num_usable_samples, "sample"),
                 overlap.samples_with_shared_files.size() == 1 ? "has" : "have", keys::data::kTrain,
                 get_printable_id(overlap.samples_with_shared_files.front()));
  }
}

namespace {

/// Row groups of 64 MB are read efficiently, and several fit into memory. Not tuned.
constexpr int64_t kTargetRowGroupBytes = 64'000'000;

/// Returns a number of rows for row groups of kTargetRowGroupBytes.
int64_t compute_row_group_size(const io::RowGroupInfo& group) {
  const int64_t row_bytes = std::max<int64_t>(1, group.bytes / std::max<int64_t>(1, group.rows));
  return std::clamp<int64_t>(kTargetRowGroupBytes / row_bytes, 1, std::max<int64_t>(1, group.rows));
}

}  // namespace

void check_row_group_memory(std::optional<double> limit_gb) {
  const auto memory = io::get_row_group_memory_stats();
  if (!memory.largest_row_group) return;
  constexpr double kBytesPerGigabyte = 1e9;
  memory::AvailableHostMemory available_memory = memory::get_available_host_memory();
  if (limit_gb && *limit_gb * kBytesPerGigabyte < static_cast<double>(available_memory.bytes)) {
    available_memory = {.bytes = std::llround(*limit_gb * kBytesPerGigabyte),
                        .limit_source = std::string(keys::memory::kLimitGb)};
  }
  const io::RowGroupInfo& group = *memory.largest_row_group;
  const int64_t process_bytes = memory::get_resident_bytes();
  // Reading a row group takes up to twice its size.
  if (process_bytes + 2 * group.bytes <= available_memory.bytes) return;
  throw UserError(
      ExitCode::kDoesNotFit,
      fmt::format(
          "{}: row group {} ({}) needs {:.2f} GB while it is read, but this process uses {:.2f} of {:.2f} GB "
          "({}). Write smaller row groups, such as pyarrow.parquet.write_table(table, file, row_group_size={}), "
          "or provide more memory",
          group.file.string(), group.group, pluralize(group.rows, "row"), to_gigabytes(2 * group.bytes),
          to_gigabytes(process_bytes), to_gigabytes(available_memory.bytes), available_memory.limit_source,
          compute_row_group_size(group)));
}

std::string suggest_row_group_size() {
  const auto memory = io::get_row_group_memory_stats();
  if (!memory.largest_row_group || memory.largest_row_group->bytes <= kTargetRowGroupBytes) return {};
  const io::RowGroupInfo& group = *memory.largest_row_group;
  return fmt::format(
      "{} has row groups of up to {:.2f} GB, each of which is read at once: rewrite it with row_group_size={}",
      group.file.string(), to_gigabytes(group.bytes), compute_row_group_size(group));
}

}  // namespace vlmtrain::train
