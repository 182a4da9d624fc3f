#include "train/data_check/windowed_records.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

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
#include "vlmtrain/report/progress.h"
#include "vlmtrain/train/components.h"

namespace vlmtrain::train {

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
  hash.add(models::compute_sample_shape_key(config.model.path, settings));
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
    : config_(config), settings_(make_processor_settings(config.data, config.model.adapter)) {
  check_window_tokens(config.data);
}

std::vector<int64_t> TextSplitter::count_windows(const io::Records& records, int64_t window_tokens) {
  if (!processor_) processor_ = models::load_processor(config_.model.path, settings_);
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
