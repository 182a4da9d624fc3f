#include "vlmtrain/data/index/bad_samples.h"

#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/data/sample/sample_processor.h"

namespace vlmtrain::data {

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
    list += record.problem.empty() ? fmt::format("\n  {}: {}", record.location, problem.message)
                                   : fmt::format("\n  {}, sample {}: {}", record.location, record.id, record.problem);
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
      log.log_dropped_sample(problem.message);
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
  return fmt::format(
      "; the run was started by a version that ignored such keys: add the key to {} to read the data as that version "
      "did",
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

void BadSampleLog::log_dropped_sample(const std::string& message) {
  if (num_logged_samples_ == kMaxLoggedSamples) {
    ++num_suppressed_samples_;
    return;
  }
  ++num_logged_samples_;
  spdlog::warn("dropped: {}", message);
}

void BadSampleLog::log_summary(int64_t dropped, int64_t samples) {
  if (num_suppressed_samples_ == 0) return;
  spdlog::warn("{} more samples are dropped, {} of {} in all; ledger.json names each with the reason",
               num_suppressed_samples_, dropped, samples);
  num_suppressed_samples_ = 0;
}

}  // namespace vlmtrain::data
