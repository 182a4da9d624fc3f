#include "vlmtrain/data/bad_samples.h"

#include "data/bad_sample_log.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/data/known_problems.h"

namespace vlmtrain::data {

namespace {

constexpr size_t kNamedInError = 5;

UserError unusable_samples(const std::string& dataset, const io::Records& records,
                           const std::map<int64_t, SampleProblem>& problems) {
  std::string list;
  size_t named = 0;
  for (const auto& [index, problem] : problems) {
    if (named++ == kNamedInError) {
      list += fmt::format("\n  and {} more; ledger.json names each", problems.size() - kNamedInError);
      break;
    }
    const io::Record record = records.text_at(index);
    list += record.problem.empty() ? fmt::format("\n  {}: {}", record.place, problem.message)
                                   : fmt::format("\n  {}, sample {}: {}", record.place, record.id, record.problem);
  }
  return data_error("{}: {} of {} samples cannot be used; mend them or set data.on_bad_sample=skip{}", dataset,
                    problems.size(), records.size(), list);
}

}  // namespace

void settle_problems(const std::map<int64_t, SampleProblem>& problems, const TextColumn& ids, Ledger& ledger,
                     BadSamplePolicy policy, const io::Records& records) {
  BadSampleLog log;
  std::map<int64_t, SampleProblem> failed;
  for (const auto& [index, problem] : problems) {
    if (stops_run(problem, policy)) {
      failed.emplace(index, problem);
    } else if (ledger.status(index) != SampleStatus::kDropped) {
      log.warn(problem.message);
    }
  }
  enter_problems(problems, ids, policy, ledger);
  log.summarize(ledger.count(SampleStatus::kDropped), ledger.samples());
  if (!failed.empty()) throw unusable_samples(ledger.dataset(), records, failed);
}

}  // namespace vlmtrain::data
