#include "vlmtrain/data/known_problems.h"

namespace vlmtrain::data {

void enter_problems(const std::map<int64_t, SampleProblem>& problems, const std::vector<std::string>& ids,
                    BadSamplePolicy policy, Ledger& ledger) {
  for (const auto& [index, problem] : problems) {
    const std::string& id = ids.at(static_cast<size_t>(index));
    if (stops_run(problem, policy)) {
      ledger.mark_failed(index, id, problem.reason, problem.message);
    } else {
      ledger.mark_dropped(index, id, problem.reason, problem.message);
    }
  }
}

}  // namespace vlmtrain::data
