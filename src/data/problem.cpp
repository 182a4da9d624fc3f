#include "data/problem.h"

#include <utility>

#include "vlmtrain/data/sample.h"

namespace vlmtrain::data {

Problem describe(const std::exception_ptr& error) {
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

SampleProblem bad_sample(const std::exception_ptr& error) {
  Problem problem = describe(error);
  if (!problem.skippable) std::rethrow_exception(error);
  return {std::move(problem.reason), std::move(problem.message), problem.is_dropped};
}

}  // namespace vlmtrain::data
