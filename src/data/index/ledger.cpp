#include "vlmtrain/data/index/ledger.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/data/sample/sample_processor.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::data {

namespace {

/// Returns an entry of "shrunk" in ledger.json.
nlohmann::ordered_json shrink_info_to_json(int64_t index, const std::string& id, const ShrinkInfo& shrunk) {
  return {{"index", index},
          {"id", id},
          {"tokens", {shrunk.tokens, shrunk.tokens_after}},
          {"pixels", {shrunk.pixels, shrunk.pixels_after}},
          {"image_max_pixels", shrunk.image_max_pixels},
          {"frame_max_pixels", shrunk.frame_max_pixels}};
}

/// Parses the result of shrink_info_to_json().
ShrinkInfo shrink_info_from_json(const nlohmann::ordered_json& json) {
  return {.tokens = json.at("tokens").at(0),
          .pixels = json.at("pixels").at(0),
          .tokens_after = json.at("tokens").at(1),
          .pixels_after = json.at("pixels").at(1),
          .image_max_pixels = json.at("image_max_pixels"),
          .frame_max_pixels = json.at("frame_max_pixels")};
}

}  // namespace

Ledger::Ledger(std::string dataset, int64_t samples)
    : dataset_(std::move(dataset)), statuses_(static_cast<size_t>(samples), SampleStatus::kNotReached) {
  status_counts_[static_cast<size_t>(SampleStatus::kNotReached)] = samples;
}

Ledger Ledger::restore(const nlohmann::ordered_json& saved, std::string dataset, const SampleOrder& order,
                       const Cursor& next) {
  const int64_t samples = order.num_samples();
  Ledger ledger(std::move(dataset), samples);
  try {
    if (const auto saved_samples = saved.at("samples").get<int64_t>(); saved_samples != samples) {
      throw data_error(
          "{}: has {} samples, but the checkpoint has {}; resume with the data file that the run started with",
          ledger.dataset_, samples, saved_samples);
    }
    for (const auto& problem : saved.at("problems")) {
      if (problem.at("status") != "dropped") continue;
      const auto index = problem.at("index").get<int64_t>();
      if (index < 0 || index >= samples)
        throw data_error("the checkpoint's ledger names sample {} of a data set of {}; resume from another checkpoint",
                         index, samples);
      ledger.mark_dropped(index, problem.at("id"), problem.at("reason"), problem.at("message"));
    }
    // Ledgers of older program versions have no list of shrunk samples.
    const auto shrunk = saved.value("shrunk", nlohmann::ordered_json::object());
    for (const auto& sample : shrunk.value("each", nlohmann::ordered_json::array())) {
      const auto index = sample.at("index").get<int64_t>();
      if (index < 0 || index >= samples)
        throw data_error("the checkpoint's ledger names sample {} of a data set of {}; resume from another checkpoint",
                         index, samples);
      ledger.mark_shrunk(index, sample.at("id"), shrink_info_from_json(sample));
    }
    if (saved.contains("notices")) {
      ledger.notices_ = NoticeCounts::from_json(saved.at("notices"));
      ledger.has_precounted_notices_ = saved.at("notices_of") == "all";
      for (const auto& [kind, count] : ledger.notices_.kinds()) ledger.precounted_kinds_.insert(kind);
    }
  } catch (const nlohmann::ordered_json::exception& error) {
    throw data_error("the checkpoint's ledger cannot be read: {}; resume from another checkpoint",
                     io::describe_json_exception(error));
  }
  // A sample is used once it was drawn in its first epoch.
  for (size_t source = 0; source < next.sources.size(); ++source) {
    const auto [epoch, offset] = next.sources[source];
    const auto first_epoch_order = order.get_epoch_order(static_cast<int64_t>(source), 0);
    const std::vector<int64_t>& epoch_samples = first_epoch_order->samples;
    const int64_t num_used_samples = epoch > 0 ? std::ssize(epoch_samples) : offset;
    VLMTRAIN_CHECK(num_used_samples <= std::ssize(epoch_samples), "position {} of {} samples", num_used_samples,
                   epoch_samples.size());
    for (int64_t i = 0; i < num_used_samples; ++i) ledger.mark_used(epoch_samples[static_cast<size_t>(i)]);
  }
  return ledger;
}

void Ledger::mark_used(int64_t index, std::string_view id, const std::vector<io::Notice>& notices) {
  if (!upgrade_status(index, SampleStatus::kUsed) || notices.empty()) return;
  std::vector<io::Notice> counted_notices;
  std::ranges::copy_if(notices, std::back_inserter(counted_notices),
                       [this](const io::Notice& notice) { return is_counted_on_use(notice.kind); });
  notices_.add(id, counted_notices);
}

void Ledger::set_precounted_notices(NoticeCounts notices) {
  has_precounted_notices_ = true;
  precounted_kinds_.clear();
  for (const auto& [kind, count] : notices.kinds()) precounted_kinds_.insert(kind);
  notices.add_missing_kinds(std::exchange(notices_, {}));
  notices_ = std::move(notices);
}

void Ledger::mark_dropped(int64_t index, std::string id, std::string reason, std::string message) {
  if (!upgrade_status(index, SampleStatus::kDropped)) return;
  problems_[index] = {std::move(id), std::move(reason), std::move(message)};
}

void Ledger::mark_failed(int64_t index, std::string id, std::string reason, std::string message) {
  if (!upgrade_status(index, SampleStatus::kFailed)) return;
  problems_[index] = {std::move(id), std::move(reason), std::move(message)};
}

void Ledger::mark_shrunk(int64_t index, std::string id, const ShrinkInfo& shrunk) {
  shrink_infos_[index] = {std::move(id), shrunk};
}

bool Ledger::upgrade_status(int64_t index, SampleStatus status) {
  VLMTRAIN_CHECK(index >= 0 && index < num_samples(), "sample {} of {}", index, num_samples());
  SampleStatus& current = statuses_[static_cast<size_t>(index)];
  if (status <= current) return false;
  --status_counts_[static_cast<size_t>(current)];
  ++status_counts_[static_cast<size_t>(status)];
  current = status;
  return true;
}

nlohmann::ordered_json Ledger::to_json() const {
  VLMTRAIN_CHECK(std::accumulate(status_counts_.begin(), status_counts_.end(), int64_t{0}) == num_samples(),
                 "the counts do not sum to {} samples", num_samples());
  VLMTRAIN_CHECK(count(SampleStatus::kDropped) + count(SampleStatus::kFailed) == std::ssize(problems_),
                 "{} problems do not match the counts of dropped and failed samples", problems_.size());
  auto problems = nlohmann::ordered_json::array();
  std::map<std::string, int64_t> counts_by_reason;
  for (const auto& [index, problem] : problems_) {
    ++counts_by_reason[problem.reason];
    problems.push_back({{"index", index},
                        {"id", problem.id},
                        {"status", status(index) == SampleStatus::kFailed ? "failed" : "dropped"},
                        {"reason", problem.reason},
                        {"message", problem.message}});
  }
  auto shrunk = nlohmann::ordered_json::array();
  for (const auto& [index, sample] : shrink_infos_)
    shrunk.push_back(shrink_info_to_json(index, sample.first, sample.second));
  return {{"dataset", dataset_},
          {"samples", num_samples()},
          {"used", count(SampleStatus::kUsed)},
          {"dropped", count(SampleStatus::kDropped)},
          {"failed", count(SampleStatus::kFailed)},
          {"not_reached", count(SampleStatus::kNotReached)},
          {"reasons", nlohmann::ordered_json(counts_by_reason)},
          {"problems", std::move(problems)},
          {"shrunk", {{"samples", shrink_infos_.size()}, {"each", std::move(shrunk)}}},
          {"notices", notices_.to_json()},
          {"notices_of", has_precounted_notices_ ? "all" : "used"}};
}

EpochProgress::EpochProgress(const Ledger& ledger, const SampleOrder& order)
    : ledger_(ledger), order_(order), source_progress_(static_cast<size_t>(order.num_sources())) {}

const EpochProgress::SourceProgress& EpochProgress::update_source_progress(int64_t source, const Cursor& cursor) {
  SourceProgress& progress = source_progress_[static_cast<size_t>(source)];
  const EpochPosition position = cursor.sources.empty() ? EpochPosition{} : cursor.sources[static_cast<size_t>(source)];
  const int64_t num_dropped_samples = ledger_.count(SampleStatus::kDropped);
  const auto is_usable = [this](int64_t sample) { return ledger_.status(sample) != SampleStatus::kDropped; };
  if (position.epoch != progress.epoch) progress.order = order_.get_epoch_order(source, position.epoch);
  // The counts are continued if the cursor moved forward within the epoch. Otherwise they start
  // again at its beginning.
  if (position.epoch != progress.epoch || num_dropped_samples != progress.num_dropped_samples ||
      position.offset < progress.offset) {
    progress.offset = progress.num_usable_before_offset = 0;
    progress.num_usable_samples = std::max<int64_t>(1, std::ranges::count_if(progress.order->samples, is_usable));
  }
  progress.epoch = position.epoch;
  progress.num_dropped_samples = num_dropped_samples;
  for (; progress.offset < position.offset; ++progress.offset) {
    if (is_usable(progress.order->samples[static_cast<size_t>(progress.offset)])) ++progress.num_usable_before_offset;
  }
  return progress;
}

double EpochProgress::compute_source_progress(int64_t source, const Cursor& cursor) {
  const SourceProgress& progress = update_source_progress(source, cursor);
  return static_cast<double>(progress.epoch) +
         static_cast<double>(progress.num_usable_before_offset) / static_cast<double>(progress.num_usable_samples);
}

double EpochProgress::at(const Cursor& cursor) {
  if (order_.num_sources() == 1) return compute_source_progress(0, cursor) / order_.source(0).repeat;
  // All samples drawn, relative to the samples of an epoch of all sources.
  double num_drawn_samples = 0, num_usable_samples = 0;
  for (int64_t source = 0; source < order_.num_sources(); ++source) {
    const SourceProgress& progress = update_source_progress(source, cursor);
    num_drawn_samples +=
        static_cast<double>(progress.epoch * progress.num_usable_samples + progress.num_usable_before_offset);
    num_usable_samples += order_.source(source).repeat * static_cast<double>(progress.num_usable_samples);
  }
  return num_drawn_samples / num_usable_samples;
}

double count_batch_units_per_epoch(const SampleOrder& order, const Ledger& ledger) {
  double units = 0;
  for (int64_t source = 0; source < order.num_sources(); ++source) {
    const auto epoch = order.get_epoch_order(source, 0);
    const auto num_usable_samples = std::ranges::count_if(
        epoch->samples, [&](int64_t sample) { return ledger.status(sample) != SampleStatus::kDropped; });
    const double share =
        static_cast<double>(num_usable_samples) / static_cast<double>(std::max<size_t>(1, epoch->samples.size()));
    units += order.source(source).repeat * share * static_cast<double>(epoch->num_units());
  }
  return units;
}

namespace {

/// Samples listed in the error message, so that it stays readable; ledger.json lists all of them.
constexpr size_t kMaxListedSamples = 5;

/// Returns the error for bad samples that stop the run, with the first of them and their locations.
UserError make_unusable_samples_error(const std::string& dataset, const io::Records& records,
                                      const std::map<int64_t, SampleProblem>& problems) {
  std::string list;
  size_t num_listed = 0;
  for (const auto& [index, problem] : problems) {
    if (num_listed++ == kMaxListedSamples) {
      list += fmt::format("\n  and {} more; ledger.json names each", problems.size() - kMaxListedSamples);
      break;
    }
    const io::Record record = records.at_without_media_bytes(index);
    list += record.problem.empty()
                ? fmt::format("\n  {}: {}", record.location, problem.message)
                : fmt::format("\n  {}, sample {}: {}", record.location, record.id, io::describe_problem(record));
  }
  return data_error("{}: {} of {} cannot be used; fix them or set {}=skip{}", dataset, problems.size(),
                    pluralize(records.size(), "sample"), keys::data::kOnBadSample, list);
}

/// Dropped samples that are logged one by one, so that they do not flood the log. Not tuned.
constexpr int64_t kMaxLoggedSamples = 20;

}  // namespace

void report_problems(const std::map<int64_t, SampleProblem>& problems, const TextColumn& ids, Ledger& ledger,
                     BadSamplePolicy policy, const io::Records& records) {
  BadSampleLog log;
  std::map<int64_t, SampleProblem> fatal_problems;
  for (const auto& [index, problem] : problems) {
    if (should_stop_run(problem, policy)) {
      fatal_problems.emplace(index, problem);
    } else if (ledger.status(index) != SampleStatus::kDropped) {
      log.log_dropped_sample(ledger.dataset_name(), problem.message);
    }
  }
  add_problems_to_ledger(problems, ids, policy, ledger);
  log.log_summary(ledger.count(SampleStatus::kDropped), ledger.num_samples());
  if (!fatal_problems.empty()) throw make_unusable_samples_error(ledger.dataset_name(), records, fatal_problems);
}

void add_problems_to_ledger(const std::map<int64_t, SampleProblem>& problems, const TextColumn& ids,
                            BadSamplePolicy policy, Ledger& ledger) {
  for (const auto& [index, problem] : problems) {
    const std::string id(ids[index]);
    if (should_stop_run(problem, policy)) {
      ledger.mark_failed(index, id, problem.reason, problem.message);
    } else {
      ledger.mark_dropped(index, id, problem.reason, problem.message);
    }
  }
}

bool mentions_ignored_keys(std::string_view message) {
  return message.find(keys::data::kIgnoreKeys) != std::string_view::npos;
}

std::string make_ignored_keys_hint(std::string_view message) {
  if (!mentions_ignored_keys(message)) return {};
  return fmt::format("; to read the data as the version that started the run, add the key to {}",
                     keys::data::kIgnoreKeys);
}

LoadFailure describe_failure(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const SampleError& bad) {
    return {bad.reason(), bad.what(), true, bad.is_dropped()};
  } catch (const UserError& bad) {
    return {"bad data", bad.what(), bad.code() == ExitCode::kBadData};
  } catch (const std::exception& unexpected) {
    return {"unexpected error", unexpected.what()};
  } catch (...) {
    return {"unexpected error", "an exception of unknown type"};
  }
}

SampleProblem to_sample_problem(const std::exception_ptr& error) {
  LoadFailure problem = describe_failure(error);
  if (!problem.is_skippable) std::rethrow_exception(error);
  return {std::move(problem.reason), std::move(problem.message), problem.is_dropped};
}

void BadSampleLog::log_dropped_sample(const std::string& dataset, const std::string& message) {
  if (num_logged_samples_ == kMaxLoggedSamples) {
    ++num_suppressed_samples_;
    return;
  }
  ++num_logged_samples_;
  spdlog::warn("{}: dropped: {}", dataset, message);
}

void BadSampleLog::log_summary(int64_t dropped, int64_t samples) {
  if (num_suppressed_samples_ == 0) return;
  spdlog::warn("{} more samples are dropped, {} of {} in all; ledger.json names each with the reason",
               num_suppressed_samples_, dropped, samples);
  num_suppressed_samples_ = 0;
}

}  // namespace vlmtrain::data
