#include "vlmtrain/data/bad_samples.h"

#include "data/bad_sample_log.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/data/known_problems.h"

namespace vlmtrain::data {

namespace {

constexpr size_t kMaxListedSamples = 5;

UserError make_unusable_samples_error(const std::string& dataset, const io::Records& records,
                                      const std::map<int64_t, SampleProblem>& problems) {
  std::string list;
  size_t num_listed = 0;
  for (const auto& [index, problem] : problems) {
    if (num_listed++ == kMaxListedSamples) {
      list += fmt::format("\n  and {} more; ledger.json names each", problems.size() - kMaxListedSamples);
      break;
    }
    const io::Record record = records.at_without_bytes(index);
    list += record.problem.empty() ? fmt::format("\n  {}: {}", record.location, problem.message)
                                   : fmt::format("\n  {}, sample {}: {}", record.location, record.id, record.problem);
  }
  return data_error("{}: {} of {} samples cannot be used; mend them or set data.on_bad_sample=skip{}", dataset,
                    problems.size(), records.size(), list);
}

}  // namespace

void report_problems(const std::map<int64_t, SampleProblem>& problems, const TextColumn& ids, Ledger& ledger,
                     BadSamplePolicy policy, const io::Records& records) {
  BadSampleLog log;
  std::map<int64_t, SampleProblem> failures;
  for (const auto& [index, problem] : problems) {
    if (stops_run(problem, policy)) {
      failures.emplace(index, problem);
    } else if (ledger.status(index) != SampleStatus::kDropped) {
      log.warn(problem.message);
    }
  }
  record_problems(problems, ids, policy, ledger);
  log.summarize(ledger.count(SampleStatus::kDropped), ledger.samples());
  if (!failures.empty()) throw make_unusable_samples_error(ledger.dataset(), records, failures);
}

}  // namespace vlmtrain::data
