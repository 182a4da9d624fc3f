#include "data/loader/bad_sample_handler.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <set>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/data/sample/sample.h"

namespace vlmtrain::data {

namespace {

/// Sets the notices of a sample of another rank. `entry`: [seed, [kind, example], …].
void set_remote_notices(GlobalBatch& batch, const nlohmann::json& entry) {
  const auto sample = std::ranges::find(batch.remote_samples, entry.at(0).get<uint64_t>(), &RemoteSample::seed);
  if (sample == batch.remote_samples.end()) return;
  sample->notices.clear();
  for (size_t i = 1; i < entry.size(); ++i) sample->notices.push_back({entry[i].at(0), entry[i].at(1)});
}

/// Sets the shrink info of a sample of another rank. `entry`: [seed, numbers].
void set_remote_shrink_info(GlobalBatch& batch, const nlohmann::json& entry) {
  const auto sample = std::ranges::find(batch.remote_samples, entry.at(0).get<uint64_t>(), &RemoteSample::seed);
  if (sample != batch.remote_samples.end()) sample->shrink_info = parse_shrink_info(entry.at(1));
}

}  // namespace

void BadSampleHandler::handle_failure(int64_t index, const std::exception_ptr& error) {
  const LoadFailure failure = describe_failure(error);
  if (add_failure_to_ledger(index, failure)) return;
  if (failure.is_skippable) throw make_bad_sample_error(index, failure);
  const io::Record record = records_.at_without_media_bytes(index);
  spdlog::error("{}: sample {} ({}) stopped the run: {}", ledger_.dataset_name(), record.id, record.location,
                failure.message);
  std::rethrow_exception(error);
}

void BadSampleHandler::add(int64_t index, const std::exception_ptr& error) {
  LoadFailure failure = describe_failure(error);
  if (!failure.is_skippable) std::rethrow_exception(error);
  unsynced_failures_.emplace(index, std::move(failure));
}

bool BadSampleHandler::sync_bad_samples(GlobalBatch& batch) {
  if (settings_.shard.world_size == 1) return false;
  std::set<int64_t> bad_sample_indices;
  for (const auto& message : settings_.shard.all_gather_strings(serialize_batch_status(batch))) {
    if (message.empty()) continue;
    const auto json = nlohmann::json::parse(message);
    for (const auto& entry : json.at("bad")) {
      const auto index = entry.at(0).get<int64_t>();
      const LoadFailure failure{entry.at(1), entry.at(2), /*is_skippable=*/true, entry.at(3).get<bool>()};
      if (bad_sample_indices.insert(index).second && !add_failure_to_ledger(index, failure))
        throw make_bad_sample_error(index, failure);
    }
    for (const auto& entry : json.at("shrunk")) set_remote_shrink_info(batch, entry);
    for (const auto& entry : json.at("notices")) set_remote_notices(batch, entry);
  }
  unsynced_failures_.clear();
  std::erase_if(batch.remote_samples,
                [&](const RemoteSample& sample) { return bad_sample_indices.contains(sample.index); });
  // A sample that was drawn twice into one batch may have succeeded before it failed.
  std::erase_if(batch.samples, [&](const Sample& sample) { return bad_sample_indices.contains(sample.index); });
  return !bad_sample_indices.empty();
}

/// Returns {"bad": [[index, reason, message, is_dropped]], "shrunk": [[seed, numbers]],
/// "notices": [[seed, [kind, example], …]]}, or "" if all lists are empty.
std::string BadSampleHandler::serialize_batch_status(const GlobalBatch& batch) const {
  auto bad_samples_json = nlohmann::json::array(), shrunk = nlohmann::json::array(), notices = nlohmann::json::array();
  for (const auto& [index, failure] : unsynced_failures_) {
    bad_samples_json.push_back({index, failure.reason, failure.message, failure.is_dropped});
  }
  for (const Sample& sample : batch.samples) {
    if (sample.shrink_info) shrunk.push_back({sample.seed, to_json_array(*sample.shrink_info)});
    auto entry = nlohmann::json::array({sample.seed});
    for (const auto& [kind, example] : sample.notices) {
      if (ledger_.is_counted_on_use(kind)) entry.push_back({kind, example});
    }
    if (entry.size() > 1) notices.push_back(std::move(entry));
  }
  if (bad_samples_json.empty() && shrunk.empty() && notices.empty()) return {};
  return nlohmann::json{
      {"bad", std::move(bad_samples_json)}, {"shrunk", std::move(shrunk)}, {"notices", std::move(notices)}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

UserError BadSampleHandler::make_bad_sample_error(int64_t index, const LoadFailure& failure) const {
  const std::string location = records_.at_without_media_bytes(index).location;
  const bool has_location = failure.message.find(fmt::format("({})", location)) != std::string::npos;
  return data_error("{}: {}{}; to skip such samples, set {}=skip{}", ledger_.dataset_name(),
                    has_location ? "" : location + ": ", failure.message, keys::data::kOnBadSample,
                    settings_.earlier_version_ignored_keys ? make_ignored_keys_hint(failure.message) : "");
}

/// Writes the failure to the ledger. Returns whether the run continues without the sample.
bool BadSampleHandler::add_failure_to_ledger(int64_t index, const LoadFailure& failure) {
  const std::string id = records_.at_without_media_bytes(index).id;
  const bool must_stop = settings_.on_bad_sample == BadSamplePolicy::kFail && !failure.is_dropped;
  if (!failure.is_skippable || must_stop) {
    ledger_.mark_failed(index, id, failure.reason, failure.message);
    return false;
  }
  const bool was_already_dropped = is_dropped(index);  // in an earlier epoch, or before the run resumed
  ledger_.mark_dropped(index, id, failure.reason, failure.message);
  if (!was_already_dropped) bad_sample_log_.log_dropped_sample(ledger_.dataset_name(), failure.message);
  return true;
}

}  // namespace vlmtrain::data
