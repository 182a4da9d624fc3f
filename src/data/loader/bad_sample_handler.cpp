#include "data/loader/bad_sample_handler.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <set>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"

namespace vlmtrain::data {

namespace {

/// Sets the notices of a sample of another rank. `entry`: [seed, [kind, example], …].
void apply_remote_notices(GlobalBatch& batch, const nlohmann::json& entry) {
  const auto sample = std::ranges::find(batch.remote_samples, entry.at(0).get<uint64_t>(), &RemoteSample::seed);
  if (sample == batch.remote_samples.end()) return;
  sample->notices.clear();
  for (size_t i = 1; i < entry.size(); ++i) sample->notices.push_back({entry[i].at(0), entry[i].at(1)});
}

/// Sets the shrink info of a sample of another rank. `entry`: [seed, numbers].
void apply_remote_shrink_info(GlobalBatch& batch, const nlohmann::json& entry) {
  const auto sample = std::ranges::find(batch.remote_samples, entry.at(0).get<uint64_t>(), &RemoteSample::seed);
  if (sample != batch.remote_samples.end()) sample->shrunk = parse_shrink_info(entry.at(1));
}

}  // namespace

void BadSampleHandler::handle_failure(int64_t index, const std::exception_ptr& error) {
  const LoadFailure failure = describe_failure(error);
  if (record_failure(index, failure)) return;
  if (failure.is_skippable) throw make_stop_error(index, failure);
  const io::Record record = records_.at_without_bytes(index);
  spdlog::error("{}: sample {} ({}) stopped the run: {}", ledger_.dataset(), record.id, record.location,
                failure.message);
  std::rethrow_exception(error);
}

void BadSampleHandler::add(int64_t index, const std::exception_ptr& error) {
  LoadFailure failure = describe_failure(error);
  if (!failure.is_skippable) std::rethrow_exception(error);
  bad_samples_.emplace(index, std::move(failure));
}

bool BadSampleHandler::sync_bad_samples(GlobalBatch& batch) {
  if (settings_.shard.world_size == 1) return false;
  std::set<int64_t> all_bad_samples;
  for (const auto& message : settings_.shard.all_gather_strings(serialize_status(batch))) {
    if (message.empty()) continue;
    const auto json = nlohmann::json::parse(message);
    for (const auto& entry : json.at("bad")) {
      const auto index = entry.at(0).get<int64_t>();
      const LoadFailure failure{entry.at(1), entry.at(2), /*is_skippable=*/true, entry.at(3).get<bool>()};
      if (all_bad_samples.insert(index).second && !record_failure(index, failure))
        throw make_stop_error(index, failure);
    }
    for (const auto& entry : json.at("shrunk")) apply_remote_shrink_info(batch, entry);
    for (const auto& entry : json.at("notices")) apply_remote_notices(batch, entry);
  }
  bad_samples_.clear();
  std::erase_if(batch.remote_samples,
                [&](const RemoteSample& sample) { return all_bad_samples.contains(sample.index); });
  // A sample that was drawn twice into one batch may have succeeded before it failed.
  std::erase_if(batch.samples, [&](const Sample& sample) { return all_bad_samples.contains(sample.index); });
  return !all_bad_samples.empty();
}

/// Returns {"bad": [[index, reason, message, is_dropped]], "shrunk": [[seed, numbers]],
/// "notices": [[seed, [kind, example], …]]}, or "" if all lists are empty.
std::string BadSampleHandler::serialize_status(const GlobalBatch& batch) const {
  auto bad = nlohmann::json::array(), shrunk = nlohmann::json::array(), notices = nlohmann::json::array();
  for (const auto& [index, failure] : bad_samples_) {
    bad.push_back({index, failure.reason, failure.message, failure.is_dropped});
  }
  for (const Sample& sample : batch.samples) {
    if (sample.shrunk) shrunk.push_back({sample.seed, to_json_array(*sample.shrunk)});
    auto entry = nlohmann::json::array({sample.seed});
    for (const auto& [kind, example] : sample.notices) {
      if (ledger_.is_counted_on_use(kind)) entry.push_back({kind, example});
    }
    if (entry.size() > 1) notices.push_back(std::move(entry));
  }
  if (bad.empty() && shrunk.empty() && notices.empty()) return {};
  return nlohmann::json{{"bad", std::move(bad)}, {"shrunk", std::move(shrunk)}, {"notices", std::move(notices)}}.dump(
      -1, ' ', false, nlohmann::json::error_handler_t::replace);
}

UserError BadSampleHandler::make_stop_error(int64_t index, const LoadFailure& failure) const {
  return data_error("{}, {}: {}; or skip such samples: data.on_bad_sample=skip{}", ledger_.dataset(),
                    records_.at_without_bytes(index).location, failure.message,
                    settings_.has_begun_ignoring_keys ? explain_ignored_keys(failure.message) : "");
}

/// Writes the failure to the ledger. Returns whether the run continues without the sample.
bool BadSampleHandler::record_failure(int64_t index, const LoadFailure& failure) {
  const std::string id = records_.at_without_bytes(index).id;
  const bool must_stop = settings_.on_bad_sample == BadSamplePolicy::kFail && !failure.is_dropped;
  if (!failure.is_skippable || must_stop) {
    ledger_.mark_failed(index, id, failure.reason, failure.message);
    return false;
  }
  const bool was_dropped = is_dropped(index);  // in an earlier epoch, or before the run resumed
  ledger_.mark_dropped(index, id, failure.reason, failure.message);
  if (!was_dropped) bad_sample_log_.warn(failure.message);
  return true;
}

}  // namespace vlmtrain::data
