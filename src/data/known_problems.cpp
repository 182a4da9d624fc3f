#include "vlmtrain/data/known_problems.h"

namespace vlmtrain::data {

void record_problems(const std::map<int64_t, SampleProblem>& problems, const TextColumn& ids, BadSamplePolicy policy,
                     Ledger& ledger) {
  for (const auto& [index, problem] : problems) {
    const std::string id(ids[index]);
    if (stops_run(problem, policy)) {
      ledger.mark_failed(index, id, problem.reason, problem.message);
    } else {
      ledger.mark_dropped(index, id, problem.reason, problem.message);
    }
  }
}

}  // namespace vlmtrain::data
