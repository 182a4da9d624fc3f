#include "data/problem.h"

#include <utility>

#include "vlmtrain/data/sample.h"

namespace vlmtrain::data {

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

}  // namespace vlmtrain::data
