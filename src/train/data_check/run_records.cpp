#include "train/data_check/run_records.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "train/data_check/data_check.h"
#include "train/run/run_folder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/data/index/text_windows.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/memory/cpu_info.h"
#include "vlmtrain/memory/host_memory.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/planner/job.h"
#include "vlmtrain/report/progress.h"
#include "vlmtrain/train/components.h"

namespace vlmtrain::train {

namespace {

constexpr const char* kHoldOutStateFile = "held_out.json";
/// Number of held-out records whose content hashes held_out.json stores with
/// data.check_at_start=false. Each record has to be read, so more would slow the start down. Not
/// tuned.
constexpr int64_t kMaxStoredContentHashes = 256;

int64_t compute_num_hash_workers(const Config& config) {
  return std::max<int64_t>(config.data.num_workers, memory::compute_default_num_threads());
}

// Field names are kept for compatibility: "stamp" is the version hash, "places" are indices,
// "contents" are content hashes.
nlohmann::ordered_json to_json(const data::HoldOutState& hold_out_state) {
  auto contents = nlohmann::ordered_json::array();
  for (const auto& [index, content] : hold_out_state.content_hashes) contents.push_back({index, content});
  return {{"path", hold_out_state.path},       {"share", hold_out_state.hold_out_share},
          {"samples", hold_out_state.samples}, {"stamp", hold_out_state.version_hash},
          {"places", hold_out_state.indices},  {"contents", std::move(contents)}};
}

/// Returns whether share and indices are valid. Edited ones could hold out other samples.
bool is_valid_hold_out_state(const data::HoldOutState& hold_out_state) {
  const auto is_valid_index = [&](int64_t index) { return index >= 0 && index < hold_out_state.samples; };
  const auto is_valid_content_hash = [&](const auto& entry) { return is_valid_index(entry.first); };
  const bool is_ascending =
      std::ranges::adjacent_find(hold_out_state.indices, std::ranges::greater_equal()) == hold_out_state.indices.end();
  return hold_out_state.hold_out_share > 0 && hold_out_state.hold_out_share < 1 && is_ascending &&
         std::ranges::all_of(hold_out_state.indices, is_valid_index) &&
         std::ranges::all_of(hold_out_state.content_hashes, is_valid_content_hash);
}

data::HoldOutState parse_hold_out_state(const nlohmann::json& json) {
  data::HoldOutState hold_out_state{.path = json.at("path"),
                                    .hold_out_share = json.at("share"),
                                    .samples = json.at("samples"),
                                    .version_hash = json.at("stamp"),
                                    .indices = json.at("places"),
                                    .content_hashes = {}};
  for (const auto& entry : json.at("contents")) hold_out_state.content_hashes.emplace_back(entry.at(0), entry.at(1));
  return hold_out_state;
}

/// Returns the entries of held_out.json; empty if the file does not exist. Throws UserError
/// (kBadData).
std::vector<data::HoldOutState> load_hold_out_states(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return {};
  std::vector<data::HoldOutState> hold_out_states;
  try {
    const auto json = io::read_json(file);
    for (const auto& source : json.at("sources")) hold_out_states.push_back(parse_hold_out_state(source));
    if (std::ranges::all_of(hold_out_states, is_valid_hold_out_state)) return hold_out_states;
  } catch (const nlohmann::json::exception&) {
  }
  throw data_error(
      "{}: is invalid, so the held-out samples are unknown; restore it, or move it away to draw them again",
      file.string());
}

/// Returns the saved state of the source with this path in output.dir.
std::optional<data::HoldOutState> find_hold_out_state(const Config& config, const std::string& path) {
  if (config.output.dir.empty()) return std::nullopt;
  auto hold_out_states = load_hold_out_states(std::filesystem::path(config.output.dir) / kHoldOutStateFile);
  for (auto& hold_out_state : hold_out_states) {
    if (hold_out_state.path == path) return std::move(hold_out_state);
  }
  return std::nullopt;
}

}  // namespace

data::HoldOutSplit split_source(const Config& config, const data::Source& source, const io::Records& records,
                                bool log_changes) {
  const double hold_out_share = data::parse_hold_out_share(config.data).value_or(0);
  const auto seed = static_cast<uint64_t>(config.training.seed);
  const auto hold_out_state = find_hold_out_state(config, source.path);
  if (hold_out_state && hold_out_state->hold_out_share == hold_out_share) {
    auto restored = data::restore_hold_out(*hold_out_state, records, seed, compute_num_hash_workers(config));
    if (log_changes && !restored.change_description.empty())
      spdlog::info("data {}: {}", source.path, restored.change_description);
    return std::move(restored.split);
  }
  if (hold_out_state && log_changes && hold_out_share > hold_out_state->hold_out_share) {
    spdlog::warn("data {}: {} was {} and is {}, so the run may have trained on some held-out samples", source.path,
                 keys::data::kEval, hold_out_state->hold_out_share, hold_out_share);
  }
  return data::draw_hold_out_split(records.size(), hold_out_share, seed);
}

void save_held_out_splits(const Config& config, const std::vector<HoldOutSource>& sources) {
  const auto file = get_run_folder(config) / kHoldOutStateFile;
  const double hold_out_share = data::parse_hold_out_share(config.data).value_or(0);
  auto json = nlohmann::ordered_json::array();
  bool has_changed_split = false;
  for (const auto& [path, records, indices] : sources) {
    const auto previous = find_hold_out_state(config, path);
    data::HoldOutState current{.path = path,
                               .hold_out_share = hold_out_share,
                               .samples = records->size(),
                               .version_hash = records->version_hash(),
                               .indices = indices,
                               .content_hashes = {}};
    const bool is_same = previous && previous->hold_out_share == hold_out_share &&
                         previous->samples == current.samples && previous->version_hash == current.version_hash &&
                         previous->indices == current.indices &&
                         (previous->has_all_content_hashes() || !config.data.check_at_start);
    if (is_same) {
      current.content_hashes = previous->content_hashes;
    } else {
      const int64_t max_hashed_records =
          config.data.check_at_start ? std::numeric_limits<int64_t>::max() : kMaxStoredContentHashes;
      data::compute_content_hashes(current, *records, max_hashed_records, compute_num_hash_workers(config));
      has_changed_split = true;
    }
    json.push_back(to_json(current));
  }
  if (has_changed_split)
    io::write_file(file, io::to_json_string(nlohmann::ordered_json{{"sources", std::move(json)}}) + "\n");
}

EvaluationSet::EvaluationSet(const Config& config, const models::Processor& processor,
                             const std::filesystem::path& cache)
    : name_(config.data.eval), records_(open_evaluation_records(config)) {
  if (config.evaluation.samples) {
    auto indices = select_evenly_spaced_indices(*records_, *config.evaluation.samples);
    records_ = std::make_shared<io::SubsetRecords>(std::move(records_), std::move(indices));
  }
  check_samples(config, processor, cache);
}

void EvaluationSet::check_samples(const Config& config, const models::Processor& processor,
                                  const std::filesystem::path& cache) {
  const auto& file = config.data.eval;
  sample_index_ = check_data(*records_, processor, config, file, cache);
  log_evaluation_data_remarks(config, sample_index_);
  if (!sample_index_.is_complete) sample_index_.notices = {};
  data::Ledger ledger(file, records_->size());
  data::report_problems(sample_index_.problems, sample_index_.ids, ledger, config.data.on_bad_sample, *records_);
  std::vector<int64_t> usable_indices;
  for (int64_t index = 0; index < records_->size(); ++index) {
    if (!sample_index_.problems.contains(index)) usable_indices.push_back(index);
  }
  if (usable_indices.empty()) {
    throw data_error(
        "{}: {}: none of the {} samples can be used; the first: {}", keys::data::kEval, file, records_->size(),
        sample_index_.problems.empty() ? "it has no records" : sample_index_.problems.begin()->second.message);
  }
  if (config.evaluation.is_enabled() && config.evaluation.best_metric == BestMetric::kDice)
    check_has_masks(usable_indices);
  if (num_bad_samples() > 0)
    records_ = std::make_shared<io::SubsetRecords>(std::move(records_), std::move(usable_indices));
}

/// Throws UserError (kUsage) if no usable sample has a mask. Samples that were not checked may have
/// masks.
void EvaluationSet::check_has_masks(const std::vector<int64_t>& usable_indices) const {
  const auto may_have_masks = [this](int64_t index) {
    const auto shape = sample_index_.shapes[index];
    return !shape || shape->masks > 0;
  };
  if (std::ranges::any_of(usable_indices, may_have_masks)) return;
  throw usage_error(
      "{}: is dice, which needs masks, but none of the {} samples of {} has a mask; use {}=loss or exact_match, or "
      "evaluate on samples with masks",
      keys::training::kBestMetric, usable_indices.size(), keys::data::kEval, keys::training::kBestMetric);
}

void EvaluationSet::add_missing_notices(const data::NoticeCounts& notices) {
  if (sample_index_.is_complete) sample_index_.notices.add_missing_kinds(notices);
  if (sample_index_.is_complete || sample_index_.notices == notices) return;
  data::log_notices(notices, name_, records_->size());
  sample_index_.notices = notices;
}

std::vector<planner::SampleBatch> EvaluationSet::find_worst_batches(int64_t batch_size) const {
  return planner::find_worst_batches(sample_index_, batch_size);
}

int64_t compute_largest_sample_bytes(const std::vector<planner::SampleBatch>& batches) {
  int64_t max_bytes = 0;
  for (const auto& batch : batches) {
    const data::SampleShape& shape = batch.shapes.front();
    // Token id, label flag and position of the image feature take 32 bytes per token. Models with
    // grids add three positions.
    const int64_t bytes_per_token = shape.patch_grids.empty() ? 32 : 48;
    max_bytes =
        std::max(max_bytes, shape.pixel_rows * shape.row.bytes() + bytes_per_token * shape.tokens + shape.mask_bytes());
  }
  return max_bytes;
}

planner::EvaluationRequest make_evaluation_request(const Config& config, const EvaluationSet& evaluation_set,
                                                   planner::Job job) {
  const EvaluationOptions& options = config.evaluation;
  return {.job = std::move(job),
          .worst_batches = evaluation_set.find_worst_batches(options.batch_size.value_or(kMaxGpuEvalBatchSize)),
          .max_new_tokens = options.generate_answers ? options.max_new_tokens : 0,
          .batch_size = options.batch_size,
          .max_batch_size = kMaxGpuEvalBatchSize};
}

std::vector<int64_t> select_evenly_spaced_indices(const io::Records& records, int64_t count) {
  std::vector<int64_t> indices;
  const int64_t num_samples = std::min(count, records.size());
  // Independent of training.seed, so that all runs select the same records.
  RandomStream random(derive_stream_seed(0, "sample predictions"));
  for (int64_t i = 0; i < num_samples; ++i) {
    const int64_t first = i * records.size() / num_samples;
    const int64_t next = (i + 1) * records.size() / num_samples;
    const auto index = first + static_cast<int64_t>(random.uniform(static_cast<uint64_t>(next - first)));
    if (records.at_without_media_bytes(index).problem.empty()) indices.push_back(index);
  }
  return indices;
}

namespace {

namespace fs = std::filesystem;

/// Increment when the numbers of windows change for the same settings.
constexpr uint64_t kWindowCountsVersion = 1;

/// Returns the cache file for the windows of `records`; empty if they cannot be cached.
fs::path get_window_counts_file(const Config& config, const models::ProcessorSettings& settings,
                                const io::Records& records, int64_t window_tokens) {
  const uint64_t version_hash = records.version_hash();
  const fs::path cache = io::get_user_cache_folder();
  if (version_hash == 0 || cache.empty()) return {};
  std::error_code error;
  const fs::path folder = cache / "text-windows";
  fs::create_directories(folder, error);
  if (error) return {};
  io::clean_up_abandoned_temp_files(folder);
  ContentHash hash;
  hash.add(kWindowCountsVersion).add(version_hash).add(static_cast<uint64_t>(window_tokens));
  hash.add(models::compute_sample_shape_key(config.model.folder(), settings));
  return folder / (hash.to_hex() + ".json");
}

/// Returns the cached numbers of windows; none if the file is missing or damaged.
std::vector<int64_t> read_window_counts(const fs::path& file, int64_t num_records) {
  std::error_code error;
  if (file.empty() || !fs::is_regular_file(file, error)) return {};
  try {
    auto counts = io::read_json(file).get<std::vector<int64_t>>();
    const bool is_valid =
        std::ssize(counts) == num_records && std::ranges::all_of(counts, [](int64_t count) { return count >= 1; });
    return is_valid ? counts : std::vector<int64_t>();
  } catch (const std::exception&) {
    return {};  // counted again
  }
}

/// Throws UserError (kUsage) if windows are larger than samples or packs may be.
void check_window_tokens(const data::DataOptions& options) {
  if (!options.text_window_tokens) return;
  const auto check_limit = [&](std::string_view key, int64_t limit) {
    if (*options.text_window_tokens <= limit) return;
    throw usage_error("{}: is {}, more than {}={}, so windows could not be used; set it to {} or less",
                      keys::data::kTextWindowTokens, *options.text_window_tokens, key, limit, limit);
  };
  check_limit(keys::data::kMaxLength, options.max_length);
  if (options.packing) check_limit(keys::data::kPackMaxTokens, options.pack_max_tokens);
}

void write_window_counts(const fs::path& file, const std::vector<int64_t>& counts) {
  if (file.empty()) return;
  try {
    io::write_file(file, nlohmann::json(counts).dump());
  } catch (const std::exception& error) {
    spdlog::warn("{}: not written, so texts are tokenized again at the next start: {}", file.string(), error.what());
  }
}

}  // namespace

TextSplitter::TextSplitter(const Config& config)
    : config_(config), settings_(make_processor_settings(config.data, config.model.adapter_folder())) {
  check_window_tokens(config.data);
}

std::vector<int64_t> TextSplitter::count_windows(const io::Records& records, int64_t window_tokens) {
  if (!processor_) processor_ = models::load_processor(config_.model.folder(), settings_);
  report::CountProgressBar progress("splitting texts", records.size(), !spdlog::should_log(spdlog::level::info));
  const int64_t workers = std::max<int64_t>(config_.data.num_workers, memory::compute_default_num_threads());
  return data::count_record_windows(records, *processor_, window_tokens, workers,
                                    [&progress](int64_t completed) { progress.show(completed); });
}

std::shared_ptr<const io::Records> TextSplitter::split(std::shared_ptr<const io::Records> records,
                                                       const std::string& name) {
  const auto window_tokens = config_.data.text_window_tokens;
  if (!window_tokens) return records;
  const fs::path file = get_window_counts_file(config_, settings_, *records, *window_tokens);
  std::vector<int64_t> counts = read_window_counts(file, records->size());
  if (counts.empty()) {
    counts = count_windows(*records, *window_tokens);
    write_window_counts(file, counts);
  }
  const auto num_split_texts = std::ranges::count_if(counts, [](int64_t count) { return count > 1; });
  if (num_split_texts == 0) return records;
  auto windows = std::make_shared<data::WindowedRecords>(std::move(records), counts, *window_tokens);
  spdlog::info("data {}: {} longer than {} tokens {} split into windows, which makes {} of {}", name,
               pluralize(num_split_texts, "text"), *window_tokens, num_split_texts == 1 ? "is" : "are",
               pluralize(windows->size(), "sample"), pluralize(std::ssize(counts), "record"));
  return windows;
}

}  // namespace vlmtrain::train
